"""The share spec: what is read, what is written, and what is refused with a message."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nvc.base.errors import InputError
from nvc.share.memory import MEMORY_LEAST, MEMORY_LIMIT
from nvc.share.model import LEAST_LATENCY_US, MOST_IDLE_S, MOST_LATENCY_US, PRIORITIES, WHOLE_MEMORY, GpuShare, Share
from nvc.share.spec import GPU_LIMIT, TEXT_LIMIT, format_share, parse, parse_gpu

UUID = "GPU-b8058b66-3950-5eb2-94c2-df90166ee487"


@st.composite
def gpu_shares(draw: st.DrawFn) -> GpuShare:
    memory, part = draw(
        st.one_of(
            st.just((0, 0)),
            st.tuples(st.integers(MEMORY_LEAST, MEMORY_LIMIT), st.just(0)),
            st.tuples(st.just(0), st.integers(1, WHOLE_MEMORY)),
        )
    )
    request = draw(st.integers(MEMORY_LEAST, max(MEMORY_LEAST, memory - 1))) if memory > MEMORY_LEAST else 0
    share = GpuShare(
        memory,
        part,
        draw(st.one_of(st.just(0), st.integers(10, 1000))),
        draw(st.integers(0, 1000)),
        draw(st.sampled_from(("", *PRIORITIES))),
        draw(st.sampled_from((None, True, False))),
        draw(st.one_of(st.just(0), st.integers(LEAST_LATENCY_US, MOST_LATENCY_US))),
        draw(st.sampled_from((0, request))),
        draw(st.integers(0, part - 1)) if part else 0,
        draw(st.sampled_from((0, 1, 60, MOST_IDLE_S))),
    )
    return share if share != GpuShare() else GpuShare(weight=1)


SELECTORS = st.one_of(
    st.integers(0, 99).map(str),
    st.integers(0, 99).map(lambda n: f"#{n}"),
    st.uuids().map(lambda u: f"GPU-{u}"),
    st.tuples(st.integers(0, 0xFFFFFFFF), st.integers(0, 255)).map(lambda n: f"{n[0]:08x}:{n[1]:02x}:00.0"),
)


@given(st.one_of(st.none(), gpu_shares()), st.dictionaries(SELECTORS, gpu_shares(), max_size=GPU_LIMIT))
def test_what_is_written_is_read_back(default: GpuShare | None, per_gpu: dict[str, GpuShare]) -> None:
    share = Share(default, tuple(per_gpu.items()))
    if format_share(share):
        assert share == parse(format_share(share))


@given(st.one_of(st.text(), st.from_regex(r"(([0-9#:]{0,3}:)?(mem|cap|weight|off)=[-+0-9.eEKMGTi%]{0,9}[,;]?){0,5}")))
def test_any_text_is_a_share_or_a_message(text: str) -> None:
    try:
        share = parse(text)
    except InputError as error:
        assert str(error).isprintable()
    else:
        assert share == parse(format_share(share))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1048576", 1 << 20),
        ("10737418240", 10 << 30),
        ("1Mi", 1 << 20),
        ("10Gi", 10 << 30),
        ("1.5Gi", 3 << 29),
        ("512Mi", 512 << 20),
        ("3072Ki", 3 << 20),
        ("1Ti", 1 << 40),
        ("10G", 10**10),
        ("10M", 10**7),
        ("10000K", 10**7),
        ("10000k", 10**7),
        ("0.00001T", 10**7),
    ],
)
def test_memory_counts_as_in_kubernetes(text: str, size: int) -> None:
    assert size == parse_gpu(f"mem={text}").memory


def test_a_percentage_of_memory_is_kept_as_a_part() -> None:
    assert GpuShare(memory_part=125_000) == parse_gpu("mem=12.5%")


def test_the_words_of_the_manual() -> None:
    share = parse(f"0:mem=10Gi;{UUID}:mem=20Gi,weight=2;priority=high,oversubscribe=on;0000:3D:00.0:cap=33.3%")
    assert Share(
        GpuShare(priority="high", oversubscribe=True),
        (
            ("0", GpuShare(10 << 30)),
            (UUID, GpuShare(20 << 30, weight=2)),
            ("00000000:3d:00.0", GpuShare(cap=333)),
        ),
    ) == share  # fmt: skip


@pytest.mark.parametrize(("text", "microseconds"), [("1ms", 1000), ("0.5ms", 500), ("400us", 400), ("12.345ms", 12345)])
def test_a_latency_is_a_time(text: str, microseconds: int) -> None:
    share = parse(f"priority=service,latency={text}")
    assert share.default == GpuShare(priority="service", latency=microseconds)


@pytest.mark.parametrize("word", ["memory", "Memory", "MEM", "mme"])
def test_a_name_that_others_use_is_understood(word: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(f"{word}=1Gi")
    assert caught.value.hint.startswith("did you mean mem=?")


def test_off_is_no_share() -> None:
    assert Share(off=True) == parse(" off ")
    assert "off" == format_share(Share(off=True))


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "a part is empty"),
        ("mem=1Gi;", "a part is empty"),
        ("mem", "'mem' is not a setting"),
        ("memory=1Gi", "unknown setting 'memory=1Gi'"),
        ("mem=1Gi,", "unknown setting ''"),
        ("mem=1Gi cap=50%", r"'mem=1Gi\x20cap=50%' is more than one setting"),
        ("weight=3,mem=1Gi cap=50%", r"'mem=1Gi\x20cap=50%' is more than one setting"),
        ("mem=1Gi:cap=50%", "'mem=1Gi:cap=50%' is more than one setting"),
        ("mem=", "mem=''"),
        ("mem=0", "mem='0' is nothing"),
        ("mem=10", "mem='10' is 10 bytes, with which nothing computes"),
        ("mem=1048575", "mem='1048575' is 1048575 bytes"),
        ("mem=10K", "mem='10K' is less than 1Mi"),
        ("mem=0.9Mi", "mem='0.9Mi' is less than 1Mi"),
        ("mem=0%", "mem='0%'"),
        ("mem=101%", "mem='101%'"),
        ("mem=1.23456%", "mem='1.23456%'"),
        ("mem=-1", "mem='-1'"),
        ("mem=+1", "mem='+1'"),
        ("mem=1e9", "mem='1e9'"),
        ("mem=1E", "mem='1E'"),
        ("mem=0x10", "mem='0x10'"),
        ("mem=1gi", "mem='1gi'"),
        ("mem=1.5", "mem='1.5'"),
        ("mem=.5Gi", "mem='.5Gi'"),
        ("mem=1.Gi", "mem='1.Gi'"),
        ("mem=1 Gi", r"mem='1\x20Gi'"),
        ("mem=2000Ti", "is too much"),
        (f"mem={'9' * 4000}", "is not an amount"),
        ("cap=50", "cap='50'"),
        ("cap=0%", "cap='0%'"),
        ("cap=0.9%", "cap='0.9%'"),
        ("cap=100.1%", "cap='100.1%'"),
        ("cap=33.33%", "cap='33.33%'"),
        ("weight=0", "weight='0'"),
        ("weight=1001", "weight='1001'"),
        ("weight=1.5", "weight='1.5'"),
        ("priority=urgent", "priority='urgent'"),
        ("latency=1", "latency='1' is not a time"),
        ("latency=1s", "latency='1s' is not a time"),
        ("latency=0.5us", "latency='0.5us' is not a time"),
        ("latency=1.0005ms", "latency='1.0005ms' is not a time"),
        ("latency=-1ms", "latency='-1ms' is not a time"),
        ("latency=299us", "latency='299us' is less than the shortest slice and a switch"),
        ("latency=101ms", "latency='101ms' is no latency of a service"),
        (f"latency={'9' * 4000}ms", "is not a time"),
        ("oversubscribe=true", "oversubscribe='true'"),
        ("mem=1Gi,mem=2Gi", "mem is said twice"),
        ("mem=1Gi;cap=5%", "second part for all GPUs"),
        ("0:mem=1Gi;00:cap=5%", "GPU 0 is named twice"),
        (f"{UUID}:mem=1Gi;{UUID.upper().replace('GPU', 'gpu')}:mem=2Gi", "is named twice"),
        ("x:mem=1Gi", "'x' names no GPU"),
        (":mem=1Gi", "'' names no GPU"),
        ("#:mem=1Gi", "'#' names no GPU"),
        ("99999:mem=1Gi", "names no GPU"),
        ("GPU-1:mem=1Gi", "names no GPU"),
        ("off,mem=1Gi", "unknown setting 'off'"),
        ("0:off", "not a setting"),
        ("mem=1Gi;off", "off stands alone"),
        ("mem=\uff110Gi", "characters that no setting has"),
        ("mem=1Gi\n", "characters that no setting has"),
        ("mem=1Gi\0", "characters that no setting has"),
        ("mem=\x1b[2J", "characters that no setting has"),
        ("mem=1Gi," * (TEXT_LIMIT // 4), "characters are too many"),
        (";".join(f"{n}:mem=1Gi" for n in range(GPU_LIMIT + 1)), "33 GPUs are named"),
    ],
)
def test_a_mistake_is_named_and_what_is_allowed_said(text: str, named: str) -> None:
    with pytest.raises(InputError) as caught:
        parse(text)
    assert named in str(caught.value)
    assert caught.value.hint
    assert len(str(caught.value)) < 200


def test_a_lost_unit_is_told_with_an_example() -> None:
    with pytest.raises(InputError) as caught:
        parse("cap=50%,mem=10")
    assert "mem='10'" in str(caught.value)
    assert "mem=10Gi" in (caught.value.hint or "")


def test_megabytes_are_refused_at_once() -> None:
    with pytest.raises(InputError, match="too many"):
        parse("mem=" + "9" * (8 << 20))


def test_words_for_one_gpu_name_none() -> None:
    for text in ("off", "0:mem=1Gi", "mem=1Gi;0:cap=5%"):
        with pytest.raises(InputError, match="is not for one GPU"):
            parse_gpu(text)


@pytest.mark.parametrize(
    ("text", "share"),
    [
        ("mem=8Gi..40Gi", GpuShare(40 << 30, request=8 << 30)),
        ("mem=1.5Gi..2Gi", GpuShare(2 << 30, request=3 << 29)),
        ("mem=10%..50%", GpuShare(memory_part=WHOLE_MEMORY // 2, request_part=WHOLE_MEMORY // 10)),
        ("mem=8Gi..50%", GpuShare(memory_part=WHOLE_MEMORY // 2, request=8 << 30)),
        ("mem=8Gi..8Gi", GpuShare(8 << 30)),
        ("mem=50%..50%", GpuShare(memory_part=WHOLE_MEMORY // 2)),
    ],
)
def test_a_range_has_a_request_and_a_most(text: str, share: GpuShare) -> None:
    assert parse_gpu(text) == share


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mem=40Gi..8Gi", "guarantees more than it allows"),
        ("mem=50%..40%", "guarantees more than it allows"),
        ("mem=..40Gi", "is not an amount"),
        ("mem=8Gi..", "is not an amount"),
        ("mem=0..40Gi", "is nothing"),
        ("mem=8..40", "is 8 bytes"),
        ("mem=1Gi..2Gi..3Gi", "is not an amount"),
        ("mem=1Gi...2Gi", "is not an amount"),
    ],
)
def test_what_is_no_range_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_gpu(text)


@pytest.mark.parametrize(("text", "seconds"), [("idle=60s", 60), ("idle=10m", 600), ("idle=24h", 86400)])
def test_idle_is_a_time(text: str, seconds: int) -> None:
    assert parse_gpu(text).idle == seconds


@pytest.mark.parametrize("text", ["idle=60", "idle=0s", "idle=25h", "idle=1.5m", "idle=on", "idle=-1s", "idle=s"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="is not a time from 1s to 24h"):
        parse_gpu(text)
