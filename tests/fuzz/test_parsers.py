"""Every parser of bytes or text that is not ours, on mutated samples: a value or the parser's own error, in time.

Samples are in tests/fuzz/corpus, a directory a parser; an input that found something is added there.
NVC_FUZZ_EXAMPLES: inputs for each parser (50 when not set; `make fuzz`: 20,000).
"""

from __future__ import annotations

import io
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hook import bundle, environment, mount_requests, state
from nvc.agent import container_state
from nvc.base import config_file, toml_subset
from nvc.base.errors import NvcError
from nvc.base.record import DecodeError
from nvc.cdi import loaderconf
from nvc.cdi import spec as cdi_spec
from nvc.cdi import text as cdi_text
from nvc.container import compat, operations
from nvc.doctor import config_check
from nvc.engines import jsontext, tomltext
from nvc.formats import FormatError, csvmounts, elf, ldcache, mountinfo, procfs
from nvc.guard import profile
from nvc.linux.root import Root
from nvc.prefork import request as prefork_request
from nvc.request import hook_config, requirements, selection, userspec
from nvc.request.capabilities import DriverCapabilities
from nvc.share import dialects, limits, policyfile, preload, protocol, region
from nvc.share import spec as share_spec
from rpc import codec

CORPUS = Path(__file__).with_name("corpus")
EXAMPLES = int(os.environ.get("NVC_FUZZ_EXAMPLES", "50"))
#: Seconds for one input of up to a mebibyte.
SECONDS = 5.0


def text(parse: Callable[[str], Any]) -> Callable[[bytes], Any]:
    """A parser of text, which comes from files: bytes that are no UTF-8 are surrogates."""
    return lambda data: parse(data.decode("utf-8", "surrogateescape"))


def lines(parse: Callable[[list[str]], Any]) -> Callable[[bytes], Any]:
    return text(lambda whole: parse(whole.split("\n")))


def data(parse: Callable[[Any], Any]) -> Callable[[bytes], Any]:
    """What takes decoded JSON."""
    return lambda raw: parse(codec.loads(raw))


def elf_parts(raw: bytes) -> None:
    for ask in (elf.header, elf.dynamic, elf.abi_tag):
        try:
            ask(io.BytesIO(raw))
        except FormatError:
            pass


#: A directory for what is read from files.
PLACE: list[Path] = []


def config_of_a_loader(raw: bytes) -> None:
    place = PLACE[0]
    (place / "etc").mkdir(exist_ok=True)
    (place / "etc/ld.so.conf").write_bytes(raw)
    with Root.open(str(place)) as root:
        loaderconf.directories(root)


def limits_file(raw: bytes) -> None:
    """With the size and the checksum that it is to have: all the rest is looked at."""
    content = bytearray(raw[: limits.SIZE].ljust(limits.SIZE, b"\0"))
    generation = limits.HEAD.unpack_from(content)[3]
    checksum = limits.crc32(memoryview(content)[limits.BODY :])
    limits.HEAD.pack_into(content, 0, limits.MAGIC, limits.VERSION, limits.SIZE, generation, checksum)
    limits.decode(bytes(content))


def shared_region(raw: bytes) -> None:
    number = os.memfd_create("region")
    try:
        os.write(number, raw)
        os.truncate(number, region.SIZE)
        region.read(number, seconds=0.05)
    finally:
        os.close(number)


FACTS = requirements.Facts(cuda="12.4", driver="580.159.04", arch="9.0", brand="tesla")
#: Name, also of the samples' directory -> parser, and errors that it says it raises.
TARGETS: dict[str, tuple[Callable[[bytes], Any], tuple[type[Exception], ...]]] = {
    "bundle": (lambda raw: bundle.decode(raw, "/b"), (NvcError,)),
    "capabilities": (text(DriverCapabilities.parse), (NvcError,)),
    "cdi-json": (lambda raw: cdi_spec.decode(cdi_text.read(raw, "json")), (NvcError,)),
    "cdi-yaml": (lambda raw: cdi_spec.decode(cdi_text.read(raw, "yaml")), (NvcError,)),
    "codec": (codec.loads, (ValueError,)),
    "compat-note": (lambda raw: compat.read_note(lambda offset, size: raw[offset : offset + size]), ()),
    "compat-names": (lines(compat.choose), ()),
    "config-toml": (lambda raw: hook_config.decode(raw, "config.toml"), (NvcError,)),
    "config-check": (lambda raw: config_check.mistakes(raw, "config.toml"), ()),
    "config-lenient": (lambda raw: hook_config.decode(raw, "config.toml", lenient=True), (NvcError,)),
    "container-state": (lambda raw: container_state.parse(raw, 1), (NvcError, ValueError)),
    "csv-mounts": (lambda raw: csvmounts.parse(raw, "l4t.csv"), (FormatError,)),
    "dialects": (lines(lambda words: dialects.read(environment.parse(words))), (NvcError,)),
    "elf": (elf_parts, ()),
    "environment": (lines(environment.parse), (NvcError,)),
    "imex": (text(selection.parse_imex), (NvcError,)),
    "json-text": (text(jsontext.parse), (ValueError,)),
    "ldcache": (ldcache.parse, (FormatError,)),
    "loader-conf": (config_of_a_loader, ()),
    "mount-requests": (lines(lambda words: mount_requests.devices(words, lambda said: None)), (NvcError,)),
    "mountinfo": (text(mountinfo.parse), (FormatError,)),
    "operations": (data(operations.decode), (DecodeError, ValueError)),
    "policy": (lambda raw: policyfile.parse(raw, "config.toml"), (NvcError,)),
    "prefork-request": (prefork_request.decode, (prefork_request.Refused,)),
    "preload": (preload.entries, ()),
    "proc-attributes": (text(procfs.file_attributes), (FormatError,)),
    "proc-devices": (text(procfs.char_majors), (FormatError,)),
    "proc-mig": (text(procfs.mig_minors), (FormatError,)),
    "proc-version": (text(procfs.nvrm_version), (FormatError,)),
    "profile": (data(lambda found: profile.rules(found) if isinstance(found, dict) else None), (NvcError, ValueError)),
    "protocol": (protocol.decode, (NvcError, ValueError)),
    "region": (shared_region, (NvcError, ValueError, OSError)),
    "requirements": (text(lambda whole: requirements.check(whole, FACTS)), (NvcError,)),
    "share-limits": (limits_file, (ValueError,)),
    "share-spec": (text(share_spec.parse), (NvcError,)),
    "state": (lambda raw: state.decode(raw, "/b"), (NvcError,)),
    "toml-edit": (text(tomltext.parse), (ValueError,)),
    "toml-strict": (text(config_file.parse), (NvcError, ValueError)),
    "toml-subset": (text(toml_subset.loads), ()),
    "user": (text(userspec.parse_user), (NvcError,)),
}
#: Bytes that parsers look at, and numbers at the ends of what fields hold.
PIECES = (
    *(bytes((one,)) for one in b"\0\n\t \"'\\/:;,.=@#%{}[]()<>*-+0129aZ\x7f\x80\xff"),
    *((1 << bits).to_bytes(size, "little") for size, bits in ((1, 7), (2, 15), (4, 31), (8, 63))),
    *(b"\xff" * size for size in (2, 4, 8)),
    b"18446744073709551616",
    b"-1",
    b"1e999",
    b"\\u0000",
    b"\\ud800",
    "\U0001f4a9".encode(),
    b"[" * 500,
    b"../" * 50,
)

edits = st.lists(
    st.tuples(
        st.sampled_from(("insert", "replace", "cut", "repeat", "flip")),
        st.integers(0, 1 << 20),
        st.one_of(st.sampled_from(PIECES), st.binary(max_size=16)),
        st.integers(1, 64),
    ),
    max_size=8,
)


def mutated(sample: bytes, changes: list[tuple[str, int, bytes, int]]) -> bytes:
    found = bytearray(sample)
    for kind, place, piece, count in changes:
        at = place % (len(found) + 1)
        if kind == "insert":
            found[at:at] = piece
        elif kind == "replace":
            found[at : at + len(piece)] = piece
        elif kind == "cut":
            del found[at : at + count]
        elif kind == "repeat":
            found[at:at] = found[at : at + count] * count
        elif at < len(found):
            found[at] ^= 1 << count % 8
    return bytes(found[: 1 << 20])


def samples(name: str) -> list[bytes]:
    return [path.read_bytes() for path in sorted((CORPUS / name).iterdir())]


@pytest.fixture(autouse=True, scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> None:
    PLACE[:] = [tmp_path_factory.mktemp("root")]


def survives(name: str, raw: bytes) -> None:
    parse, allowed = TARGETS[name]
    start = time.process_time()
    try:
        parse(raw)
    except allowed:
        pass
    assert time.process_time() - start < SECONDS


@pytest.mark.parametrize("name", TARGETS)
def test_mutated_samples(name: str) -> None:
    seeds = samples(name)

    @settings(max_examples=EXAMPLES, database=None, suppress_health_check=list(HealthCheck))
    @given(st.sampled_from(seeds), edits)
    def check(seed: bytes, changes: list[tuple[str, int, bytes, int]]) -> None:
        survives(name, mutated(seed, changes))

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_samples_and_noise(name: str) -> None:
    """At least one sample is accepted: a parser that refuses everything would pass."""
    accepted = 0
    for raw in samples(name):
        try:
            TARGETS[name][0](raw)
            accepted += 1
        except TARGETS[name][1]:
            pass
    assert accepted
    for raw in (b"", b"\0", b"\xff" * 4096, bytes(range(256)) * 16, b"[" * 100_000, b"a" * (1 << 20)):
        survives(name, raw)


def test_every_directory_is_a_target() -> None:
    assert {path.name for path in CORPUS.iterdir()} == set(TARGETS)
