# Sourced by the other scripts: words to people go to stderr, because stdout carries the answer.

say() {
    echo "$*" >&2
}

# install_package <package> <why>: from the system's packages, as root or by passwordless sudo; else says what to do.
install_package() {
    become=
    if [ "$(id -u)" != 0 ]; then
        become="sudo -n"
    fi
    if command -v apt-get >/dev/null && $become true 2>/dev/null; then
        say "$2; installing $1"
        # Another apt-get, as on a machine that has just started, is waited for; nothing is asked.
        install="apt-get install -y --no-install-recommends -o DPkg::Lock::Timeout=120 $1"
        # Passed through sudo on the command line, because sudo does not keep the environment.
        if $become env DEBIAN_FRONTEND=noninteractive sh -c \
            "$install || { apt-get update && $install; }" >&2 </dev/null; then
            return 0
        fi
        say "$1 could not be installed; see the messages above."
    else
        say "$2, and this user may not install packages."
    fi
    say "Install it by hand, then run make again:  sudo apt-get install $1"
    exit 1
}
