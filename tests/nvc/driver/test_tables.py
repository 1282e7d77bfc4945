from __future__ import annotations

from nvc.driver import tables
from nvc.formats import ldcache
from nvc.model import DriverOptions
from nvc.request.capabilities import WORDS


def test_every_row_has_a_known_capability_and_a_note() -> None:
    for row in (*tables.LIBRARIES, *tables.BINARIES, *tables.IPCS):
        assert row.capability in WORDS, row
    for noted in (*tables.LIBRARIES, *tables.BINARIES, *tables.IPCS, *tables.NODES):
        assert noted.note, noted


def test_names_are_unique() -> None:
    names = [row.name for row in (*tables.LIBRARIES, *tables.BINARIES)]
    names += [row.path for row in (*tables.IPCS, *tables.NODES)]

    assert sorted(set(names)) == sorted(names)


def test_no_library_name_is_a_prefix_of_another() -> None:
    names = [row.name for row in tables.LIBRARIES]

    assert [] == [(a, b) for a in names for b in names if a != b and a.startswith(b)]


def test_words_in_rows_are_words_that_code_knows() -> None:
    assert {row.only for row in tables.LIBRARIES} == {"", "glvnd", "legacy"}
    assert {row.check for row in tables.LIBRARIES} == {"", "tls-note", "legacy-gl"}
    options = set(DriverOptions._fields)
    # Ours, from the configuration: no words.
    options -= {"mps_user"}
    used = {row.option for row in (*tables.BINARIES, *tables.IPCS, *tables.NODES) if row.option}
    assert used == options - {"no_glvnd", "no_gsp_firmware", "csv_all"}


def test_architectures_are_those_of_the_cache() -> None:
    known = {arch.flag for arch in ldcache.ARCHES}

    for arch in tables.HOST_ARCHES:
        assert arch.cache in known
        assert (arch.cache32 in known) is bool(arch.elf32)


def test_order_of_capabilities_is_the_order_of_results() -> None:
    order = list(dict.fromkeys(row.capability for row in tables.LIBRARIES))

    assert ["utility", "compute", "ngx", "video", "graphics"] == order


def test_the_links_of_the_reference() -> None:
    links = {row.name: [(link.name, link.text) for link in row.links] for row in tables.LIBRARIES if row.links}

    assert links == {
        "libcuda.so": [("libcuda.so", "libcuda.so.1")],
        "libGLX_nvidia.so": [("libGLX_indirect.so.0", "")],
        "libnvidia-opticalflow.so": [("libnvidia-opticalflow.so", "libnvidia-opticalflow.so.1")],
    }
