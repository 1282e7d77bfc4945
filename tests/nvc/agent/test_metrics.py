"""What Prometheus gets: the text is Prometheus's, every number is the status's, and readers cannot hurt the agent."""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_metrics
from prometheus_client.parser import text_string_to_metric_families as plain

from nvc.agent.metrics import server as metrics
from nvc.agent.metrics.exposition import text
from nvc.agent.metrics.hami import HAMI
from nvc.agent.metrics.rows import ROWS
from nvc.agent.metrics.samples import TENANTS, Row
from nvc.agent.metrics.server import parse
from nvc.agent.status import AgentStatus
from nvc.base.errors import AgentError, InputError
from nvc.bindings.reasons import REASONS
from tests.support.agent_status import GIB, UUIDS, share, status, tenant

OPEN = "application/openmetrics-text; version=1.0.0"
Labels = tuple[tuple[str, str], ...]


def samples(of: AgentStatus, *, hami: bool = False) -> dict[tuple[str, Labels], float]:
    """Every sample by name and labels, as Prometheus's own parser reads the text."""
    page, _ = text(of, hami=hami)
    found: dict[tuple[str, Labels], float] = {}
    for family in plain(page.decode()):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} is there twice"
            found[key] = sample.value
    return found


def on_gpu(name: str, container: str, gpu: str = UUIDS[0]) -> tuple[str, Labels]:
    return name, (("container", container), ("gpu", gpu))


def test_every_metric_says_what_it_is() -> None:
    gpu = share(latency_us=1000, bound_us=900, service="served", xids={"31": 2}, energy=1.5, request=GIB)
    whole = status(tenant(name="default/trainer-0/main", gpus=(gpu,)))
    page, _ = text(whole.replace(gpus=tuple(one.replace(xids={"79": 1}, energy=2.5) for one in whole.gpus)), hami=True)
    families = {family.name: family for family in plain(page.decode())}
    for row in (*ROWS, *HAMI):
        family = families[row.name.removesuffix("_total")]
        assert row.kind == family.type
        assert row.help.rstrip(".") and row.help == family.documentation
        assert not row.unit or row.name.removesuffix("_total").endswith(f"_{row.unit}")
        assert {row.name} == {sample.name for sample in family.samples}
        assert [set(row.labels)] * len(family.samples) == [set(sample.labels) for sample in family.samples]


def test_energy_that_is_not_known_has_no_series() -> None:
    assert not [name for name, _ in samples(status(tenant())) if "energy" in name]


def test_a_tenant_has_the_names_of_its_engine() -> None:
    told = status(tenant(1, name="default/trainer-0/main"), tenant(2, name="default//web"), tenant(3))
    found = [dict(labels) for name, labels in samples(told) if name == "nvc_tenant_info"]
    parts = ("namespace", "pod", "container_name")
    assert [tuple(one.get(part, "") for part in parts) for one in found] == [
        ("default", "trainer-0", "main"),
        ("default", "", "web"),
    ]
    hami = [dict(labels) for name, labels in samples(told, hami=True) if name == "hami_vgpu_memory_used_bytes"]
    assert [(one["namespace"], one["pod"]) for one in hami] == [("default", "trainer-0"), ("default", ""), ("", "")]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_our_names_follow_the_rules(row: Row) -> None:
    assert re.fullmatch(r"nvc_[a-z_]+", row.name)
    assert (row.kind == "counter") == row.name.endswith("_total")
    # A name that ends like a unit is one, and says so.
    assert row.unit in ("", "bytes", "seconds", "ratio", "joules")
    assert bool(row.unit) == bool(re.search(r"_(bytes|seconds|ratio|joules)(_total)?$", row.name))
    assert not {"pid", "le", "quantile", "job", "instance"} & set(row.labels)


def test_the_text_is_open_metrics_when_asked_for() -> None:
    page, kind = text(status(tenant()), accept=OPEN)
    assert kind.startswith("application/openmetrics-text")
    units = {family.name: family.unit for family in open_metrics(page.decode())}
    assert {row.name.removesuffix("_total"): row.unit for row in ROWS} == units


def test_the_numbers_are_those_of_the_status() -> None:
    one = tenant(1, gpus=(share(slice_us=2500, frozen=True), share(UUIDS[1], limit=0, cap=0, weight=0)), paused=True)
    found = samples(status(one))
    name = one.container
    expected = {
        "nvc_share_memory_bytes": 4 * GIB,
        "nvc_share_limit_bytes": 10 * GIB,
        "nvc_share_managed_bytes": GIB,
        "nvc_share_driver_reported_bytes": 4 * GIB,
        "nvc_share_cap_ratio": 0.5,
        "nvc_share_weight": 20,
        "nvc_share_target_ratio": 0.5,
        "nvc_share_achieved_ratio": 0.48,
        "nvc_share_groups": 2,
        "nvc_share_timeslice_seconds": 0.0025,
        "nvc_share_frozen": 1,
        "nvc_share_frozen_seconds_total": 3,
    }
    assert expected == pytest.approx({metric: found[on_gpu(metric, name)] for metric in expected})
    without = {"nvc_share_limit_bytes": 80 * GIB, "nvc_share_cap_ratio": 1, "nvc_share_weight": 10}
    assert without == {metric: found[on_gpu(metric, name, UUIDS[1])] for metric in without}
    own = (("container", name),)
    assert 3 == found["nvc_guard_denials_total", (*own, ("reason", "over-quota"))]
    assert (1000, 0.025, 1, 2) == tuple(
        pytest.approx(found[metric, own])
        for metric in (
            "nvc_guard_notifications_total",
            "nvc_guard_handling_seconds_total",
            "nvc_share_paused",
            "nvc_share_processes",
        )
    )
    assert 1 == found["nvc_agent_info", (("policy", "weighted"), ("version", "1.2"))]
    assert 1 == found["nvc_gpu_info", (("gpu", UUIDS[1]), ("minor", "1"), ("policy", "weighted"))]


def test_series_are_bounded_whatever_comes() -> None:
    many = status(*(tenant(number) for number in reversed(range(TENANTS + 40))))
    found = samples(many, hami=True)
    containers = {dict(labels).get("container") for _, labels in found} - {None}
    assert {one.container for one in many.tenants if one.id < TENANTS} == containers
    assert 40 == found["nvc_metrics_tenants_left_out", ()]
    assert TENANTS + 40 == found["nvc_tenants", (("kind", "guard"),)]


def test_reasons_that_are_unknown_are_one() -> None:
    found = samples(status(tenant(denials={"over-quota": 1, **{f"new-{number}": 2 for number in range(50)}})))
    every = {dict(labels)["reason"]: value for (name, labels), value in found.items() if "denials" in name}
    assert {*REASONS[1:], "other"} == set(every)
    reasons = {reason: value for reason, value in every.items() if value}
    assert {"over-quota": 1, "other": 100} == reasons


def test_containers_of_the_same_name_stay_apart() -> None:
    nameless = [tenant(number, container="", pid=7, kind="attach") for number in (1, 2)]
    hostile = tenant(3, container='a"b\\c\nd')
    found = samples(status(*nameless, hostile, tenant(4, container="x"), tenant(5, container="x")))
    containers = {dict(labels)["container"] for name, labels in found if name == "nvc_share_memory_bytes"}
    assert {"pid-7", "pid-7#2", 'a"b\\c\nd', "x", "x#5"} == containers


def test_a_machine_without_tenants_has_metrics() -> None:
    found = samples(status(), hami=True)
    assert 0 == found["nvc_tenants", (("kind", "guard"),)]
    assert not [name for name, _ in found if name.startswith("nvc_share")]


def test_hamis_names_have_hamis_labels_and_units(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NODE_NAME", "node-7")
    of = status(tenant(1), tenant(2, gpus=(share(cap=0, target_ratio=0.0, limit=0),)))
    found = samples(of, hami=True)
    pod = (("container", of.tenants[0].container), ("device_uuid", UUIDS[0]), ("namespace", ""), ("pod", ""))
    device = (("device_index", "0"), ("device_type", "NVIDIA"), ("device_uuid", UUIDS[0]), ("node", "node-7"))
    assert 4 * GIB == found["hami_vgpu_memory_used_bytes", (*pod, ("vdevice_index", "0"))]
    assert 10 * GIB == found["hami_vgpu_memory_limit_bytes", (*pod, ("vdevice_index", "0"))]
    computing = {
        dict(labels)["container"]: value
        for (name, labels), value in found.items()
        if "device_utilization_ratio" in name
    }
    assert {of.tenants[0].container: pytest.approx(48)} == computing
    assert 50 == found["hami_gpu_core_allocated_ratio", device]
    assert 2 == found["hami_gpu_shared_count", device]
    assert 90 * GIB == found["hami_gpu_memory_allocated_bytes", (("device_cores", "100"), *device)]
    assert not [name for name, _ in samples(of) if not name.startswith("nvc_")]


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1:9400", ("127.0.0.1", 9400)),
        ("[::1]:1", ("::1", 1)),
        (":0", ("", 0)),
        ("host:65535", ("host", 65535)),
    ],
)
def test_an_address_is_host_and_port(address: str, expected: tuple[str, int]) -> None:
    assert expected == parse(address)


@pytest.mark.parametrize("address", ["", "9400", "host:", "host:x", "host:65536", "::1:9400", "[::1:9400", "h:²"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InputError, match=re.escape("[agent] metrics")):
        parse(address)


Ask = Callable[[bytes], Awaitable[tuple[str, bytes]]]


def later(say: Callable[[], AgentStatus]) -> Callable[[], Awaitable[AgentStatus]]:
    async def answer() -> AgentStatus:
        return say()

    return answer


def serving(check: Callable[[Ask], Awaitable[None]], say: Callable[[], AgentStatus], **options: int) -> None:
    """Run ``check`` with a function that sends bytes to a server and gives (head, body)."""

    async def run() -> None:
        server = await metrics.serve("127.0.0.1:0", later(say), **options)
        port = server.sockets[0].getsockname()[1]

        async def ask(request: bytes) -> tuple[str, bytes]:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request)
            answer = await asyncio.wait_for(reader.read(), 10)
            writer.close()
            head, _, body = answer.partition(b"\r\n\r\n")
            return head.decode(), body

        try:
            await check(ask)
        finally:
            server.close()
            await server.wait_closed()

    asyncio.run(run())


def test_prometheus_reads_the_page() -> None:
    async def check(ask: Ask) -> None:
        head, body = await ask(b"GET /metrics?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert head.startswith("HTTP/1.1 200 OK") and "Content-Type: text/plain; version=0.0.4" in head
        assert f"Content-Length: {len(body)}" in head
        assert "nvc_share_memory_bytes" in {family.name for family in plain(body.decode())}
        head, body = await ask(f"GET /metrics HTTP/1.1\r\nAccept: {OPEN}\r\n\r\n".encode())
        assert "application/openmetrics-text" in head and body.endswith(b"# EOF\n")
        head, body = await ask(b"HEAD /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 200") and body == b""

    serving(check, lambda: status(tenant()))


@pytest.mark.parametrize(
    ("request_bytes", "code"),
    [
        (b"POST /metrics HTTP/1.1\r\n\r\n", 405),
        (b"GET /etc/passwd HTTP/1.1\r\n\r\n", 404),
        (b"GET / HTTP/1.0\r\n\r\n", 200),
        (b"hello\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431),
    ],
)
def test_other_requests_are_answered_briefly(request_bytes: bytes, code: int) -> None:
    async def check(ask: Ask) -> None:
        head, _ = await ask(request_bytes)
        assert head.startswith(f"HTTP/1.1 {code} ")
        assert (await ask(b"GET /metrics HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 200")

    serving(check, lambda: status(tenant()))


def test_a_status_that_fails_is_told_and_ends_nothing() -> None:
    answers: list[AgentStatus] = [status(tenant())]

    async def check(ask: Ask) -> None:
        head, _ = await ask(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 200")
        head, body = await ask(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert head.startswith("HTTP/1.1 500") and b"IndexError" in body
        answers.append(status())
        assert (await ask(b"GET /metrics HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 200")

    serving(check, lambda: answers.pop())


def test_readers_that_say_nothing_are_closed_and_keep_no_other_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "CLIENT_TIMEOUT_S", 0.2)

    async def check(ask: Ask) -> None:
        silent = [asyncio.create_task(ask(b"GET /met")) for _ in range(2)]
        await asyncio.sleep(0)
        assert [("", b"")] * 2 == [await one for one in silent]
        assert (await ask(b"GET /metrics HTTP/1.1\r\n\r\n"))[0].startswith("HTTP/1.1 200")

    serving(check, lambda: status(), limit=2)


def test_the_oldest_that_says_nothing_makes_room() -> None:
    """Sixteen connections of any process kept Prometheus out for five seconds, again and again."""

    async def run() -> None:
        server = await metrics.serve("127.0.0.1:0", later(status), limit=3)
        port = server.sockets[0].getsockname()[1]
        silent = []
        for _ in range(3):
            silent.append(await asyncio.open_connection("127.0.0.1", port))
            # Served one after another, as they were opened.
            silent[-1][1].write(b"GET")
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert (await asyncio.wait_for(reader.read(), 20)).startswith(b"HTTP/1.1 200")
        writer.close()
        try:
            assert b"" == await asyncio.wait_for(silent[0][0].read(), 20)
        except ConnectionResetError:
            pass
        assert [False, False] == [one.at_eof() for one, _ in silent[1:]]
        for _, writer in silent:
            writer.close()
        server.close()

    asyncio.run(run())


def test_where_all_are_being_answered_one_more_is_refused() -> None:
    async def check(ask: Ask) -> None:
        assert (await ask(b""))[0].startswith("HTTP/1.1 503")

    serving(check, status, limit=0)


def test_readers_that_do_not_read_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each kept its connection and a page in the agent's memory, and did not count: any user of the machine may connect.
    monkeypatch.setattr(metrics, "CLIENT_TIMEOUT_S", 0.2)
    many = status(*(tenant(number) for number in range(TENANTS)))

    async def run() -> None:
        server = await metrics.serve("127.0.0.1:0", later(lambda: many))
        loop = asyncio.get_running_loop()
        server.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        before, accepted = len(os.listdir("/proc/self/fd")), False
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            await loop.sock_connect(deaf, server.sockets[0].getsockname())
            await loop.sock_sendall(deaf, b"GET /metrics HTTP/1.1\r\n\r\n")
            for _ in range(500):
                await asyncio.sleep(0.01)
                accepted |= len(os.listdir("/proc/self/fd")) == before + 2
                if accepted and len(os.listdir("/proc/self/fd")) == before + 1:
                    break  # ours alone
            else:
                raise AssertionError("its connection stays")
        server.close()

    asyncio.run(run())


def test_an_address_in_use_is_an_error_with_advice() -> None:
    async def run() -> None:
        server = await metrics.serve("127.0.0.1:0", later(status))
        try:
            with pytest.raises(AgentError, match="in use") as raised:
                await metrics.serve(f"127.0.0.1:{server.sockets[0].getsockname()[1]}", later(status))
            assert "choose another address" in raised.value.hint
        finally:
            server.close()

    asyncio.run(run())
