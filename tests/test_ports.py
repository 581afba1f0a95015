"""Processes of a job listen in a range of ports, behind a translation of addresses, and on IPv6."""

import socket
import urllib.request
from contextlib import ExitStack, closing
from unittest.mock import Mock

import msgspec
import pytest

import holdfast as hf
from forwarding_kit import forwarded, free_ports
from holdfast.errors import HoldfastError, JobRefused, SettingsError
from holdfast.ids import Epoch, Incarnation, JobId, ProcessId, Role
from holdfast.jobmaster.server import JobMasterServer
from holdfast.leadership.link import LinkServer, connect
from holdfast.ports import Endpoint, bare, joined, parted
from holdfast.spark.staying import _own_address
from holdfast.taskmanager.jobmaster_client import JobMasterClient
from holdfast.taskmanager.security import new_secret
from holdfast.taskmanager.settings import TaskManagerSettings
from holdfast.ui.pages import Access, guarded
from holdfast.ui.server import HttpServer
from holdfast.ui.site import HttpSettings, serve_http

SECRET = new_secret()
ME = ProcessId(Role.TASK_MANAGER, 0, Incarnation(1))


def answers(address: str) -> bool:
    """True if the JobMaster at an address answers a heartbeat."""
    with closing(JobMasterClient(address, SECRET)) as client:
        return client.heartbeat(ME, {})


def hello(request, start_response):
    start_response("200 OK", [])
    return [b"hello"]


def read(url: str) -> bytes:
    with urllib.request.urlopen(url) as answer:
        return answer.read()


@pytest.mark.parametrize(
    ("host", "shown"), [("::1", "[::1]:7"), ("[fd00::2]", "[fd00::2]:7"), ("10.0.0.1", "10.0.0.1:7"), ("a.b", "a.b:7")]
)
def test_an_address_has_brackets_around_ipv6_alone_and_is_parted_again(host, shown):
    assert joined(host, 7) == shown
    assert parted(shown) == parted(f"grpc+tls://{shown}") == (bare(host), 7)


@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_the_job_master_its_link_and_its_pages_serve_on_ipv6(host):
    with (
        closing(JobMasterServer(Mock(heartbeat=lambda *_: True), SECRET, Endpoint(host))) as server,
        closing(LinkServer(Endpoint(host))) as link,
        closing(HttpServer(guarded(hello, Access()), host, 0, "ui_port")) as page,
    ):
        assert server.address == f"grpc+tls://[::1]:{server.port}"
        assert answers(server.address)
        with closing(connect(link.address)) as made:
            assert made.address.startswith("[::1]:")
        assert page.url.startswith("http://[::1]:")
        assert read(page.url) == b"hello"


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]"])
def test_a_process_binds_the_address_from_which_it_reaches_the_driver(host):
    settings = TaskManagerSettings(JobId("j"), Epoch(1), ME, f"grpc+tls://{host}:7", SECRET, "", "file:///nowhere")
    assert _own_address(settings) == msgspec.structs.replace(settings, bind_host=bare(host))


def test_a_driver_behind_a_translation_of_addresses_is_reached_at_the_outer_address():
    port = free_ports(1)
    inside = Endpoint("127.0.0.2", "127.0.0.1", (port, port))
    with closing(JobMasterServer(Mock(heartbeat=lambda *_: True), SECRET, inside)) as server:
        assert server.address == f"grpc+tls://127.0.0.2:{port}"
        with pytest.raises(ConnectionRefusedError):
            answers(server.address)
        with forwarded(port, "127.0.0.2", "127.0.0.1") as connections:
            assert answers(server.address)
            assert connections() == 1


def test_a_driver_that_listens_at_all_addresses_of_its_machine_is_reached_at_the_named_one():
    everywhere = Endpoint("127.0.0.2", "0.0.0.0")
    with closing(JobMasterServer(Mock(heartbeat=lambda *_: True), SECRET, everywhere)) as server:
        assert server.address == f"grpc+tls://127.0.0.2:{server.port}"
        assert answers(server.address)
    with closing(LinkServer(everywhere)) as link, closing(connect(link.address)) as made:
        assert made.address.startswith("127.0.0.2:")


def test_everything_on_the_driver_listens_in_the_range_and_says_when_it_is_full():
    first = free_ports(4)
    endpoint = Endpoint("127.0.0.1", port_range=(first, first + 3))
    with ExitStack() as open_servers:
        server = open_servers.enter_context(closing(JobMasterServer(Mock(), SECRET, endpoint)))
        link = open_servers.enter_context(closing(LinkServer(endpoint)))
        urls = serve_http(HttpSettings(0, 0), lambda: None, lambda: None, {}, endpoint, open_servers)
        ports = {server.port, parted(link.address)[1], parted(urls.page.strip("/"))[1]}
        ports.add(parted(urls.metrics.removesuffix("/metrics"))[1])
        assert ports == set(range(first, first + 4))
        full = f"no free port from {first} to {first + 3} on 127.0.0.1 .*widen port_range"
        for make in (lambda: JobMasterServer(Mock(), SECRET, endpoint), lambda: LinkServer(endpoint)):
            with pytest.raises(HoldfastError, match=full):
                make()
        with pytest.raises(JobRefused, match=full):
            serve_http(HttpSettings(None, 0), lambda: None, lambda: None, {}, endpoint, open_servers)


def test_a_page_on_a_port_of_its_own_is_not_bound_to_the_range():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with closing(HttpServer(hello, "127.0.0.1", port, "ui_port", (1, 1))) as page:
        assert page.url == f"http://127.0.0.1:{port}"


@pytest.mark.parametrize("ports", [(0, 5), (9, 8), (1, 70_000), 4000, "7100-7200"])
def test_a_range_that_is_none_is_refused(ports):
    with pytest.raises(SettingsError, match=r"port_range=.*allowed"):
        hf.Job(None, name="j", storage="memory:///", port_range=ports)
