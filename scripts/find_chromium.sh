#!/bin/sh
# Prints the paths of Chromium and of its driver, a line each, for the tests of the page in a real browser.
# Where there are none, Debian's packages are installed if that is allowed.
set -eu
. "$(dirname "$0")/packages.sh"

find_chromium() {
    browser=$(command -v chromium || command -v google-chrome || true)
    driver=$(command -v chromedriver || true)
    [ -n "$browser" ] && [ -n "$driver" ] && printf '%s\n%s\n' "$browser" "$driver"
}

if ! find_chromium; then
    install_package "chromium chromium-driver" "the page is tested in Chromium, and it or its driver was not found on the PATH"
    find_chromium || { say "Chromium was installed, but chromium and chromedriver are not on the PATH."; exit 1; }
fi
