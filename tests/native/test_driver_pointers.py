"""tools/driver_pointers.py reads a driver's sources: a small example with each form that it supports."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import driver_pointers
from tools.driver_pointers import LEADS, Params, Pointer, Release, gather, rendered
from tools.struct_layout import Unreadable

UNIX = "src/nvidia/arch/nvalloc/unix"
FILES = {
    "src/common/sdk/nvidia/inc/nvtypes.h": """
        typedef void *NvP64;
        typedef unsigned NvU32;
        typedef unsigned long long NvU64;""",
    "src/common/sdk/nvidia/inc/nvos.h": """
        typedef struct { NvU32 root; NvU32 status; } NVOS00_PARAMETERS;
        typedef struct { NvU32 root; NvP64 params; } NVOS54_PARAMETERS;
        typedef struct { NvP64 params; NvP64 rights; } NVOS64_PARAMETERS;""",
    "src/common/sdk/nvidia/inc/ctrl/all.h": """
        #define CMD_LIST (0x20800123U)
        #define NV_CMD_OLD (0x20801802U)
        #define CMD_EARLY (0xfd0104U)
        #define CLASS_MEMORY (0x40U)
        #define CLASS_PLAIN (0x80U)
        typedef struct { NvU32 value; } ELEMENT;
        typedef struct { NvU32 count; NvP64 list; } LIST_PARAMS;
        typedef struct { NvU32 count; struct { NvP64 list; NvU32 spare; } inner[2]; } NESTED_PARAMS;
        typedef struct { NvU32 count; NvU64 pHidden; NvU32 fd; } HIDDEN_PARAMS;
        typedef struct { NvU32 flags; NvU64 devDescriptor; } EARLY_PARAMS;
        typedef struct { NvU64 size; NvP64 address; } MEMORY_PARAMS;""",
    f"{UNIX}/include/nv_escape.h": """
        #define NV_ESC_RM_FREE 0x29
        #define NV_ESC_RM_CONTROL 0x2a
        #define NV_ESC_RM_ALLOC 0x2b""",
    f"{UNIX}/include/nv-ioctl.h": "typedef struct { NvU32 fd; } nv_ioctl_register_fd_t;",
    f"{UNIX}/include/nv-ioctl-numbers.h": "#define NV_ESC_REGISTER_FD (200 + 1)",
    f"{UNIX}/include/nv-unix-nvos-params-wrappers.h": "",
    "kernel-open/common/inc/nv-ioctl-numa.h": "",
    f"{UNIX}/src/escape.c": """
static NV_STATUS RmGetDeviceFd(NVOS54_PARAMETERS *pApi)
{
        case CMD_EARLY:
            paramSize = sizeof(EARLY_PARAMS);
}
        case NV_ESC_RM_FREE:
            NVOS00_PARAMETERS *pApi = data;
        case NV_ESC_RM_CONTROL:
            NVOS54_PARAMETERS *pApi = data;""",
    f"{UNIX}/src/osapi.c": "",
    "kernel-open/nvidia/nv.c": "\n        case NV_ESC_REGISTER_FD:\n            nv_ioctl_register_fd_t *params = arg;",
    "src/nvidia/generated/g_all_nvoc.c": """
        /*methodId=*/   0x20800123u, /*paramSize=*/  sizeof(LIST_PARAMS),
        /*methodId=*/   0x20800124u, /*paramSize=*/  sizeof(NESTED_PARAMS),
        /*methodId=*/   0x20800125u, /*paramSize=*/  sizeof(HIDDEN_PARAMS),
        /*methodId=*/   0x20800126u, /*paramSize=*/  0,""",
    "src/nvidia/src/kernel/rmapi/embedded_param_copy.c": """
NV_STATUS embeddedParamCopyIn(RMAPI_PARAM_COPY *paramCopies, RmCtrlParams *pRmCtrlParams)
        case CMD_LIST:
            CHECK_PARAMS_OR_RETURN(pRmCtrlParams, LIST_PARAMS);
            RMAPI_PARAM_COPY_INIT(paramCopies[0], ((LIST_PARAMS*)pParams)->list, ((LIST_PARAMS*)pParams)->list,
                ((LIST_PARAMS*)pParams)->count, sizeof(ELEMENT));
NV_STATUS embeddedParamCopyOut(RMAPI_PARAM_COPY *paramCopies, RmCtrlParams *pRmCtrlParams)""",
    "src/nvidia/src/kernel/rmapi/resource_list.h": """
        /* External Class */ CLASS_MEMORY, /* Alloc Param Info */ RS_REQUIRED(MEMORY_PARAMS),
        /* External Class */ CLASS_PLAIN, /* Alloc Param Info */ RS_NONE,""",
    driver_pointers.DEPRECATED: """
    { NV_CMD_OLD, V2_CONVERTER(_NV_CMD_OLD) },
static NV_STATUS V2_CONVERTER(_NV_CMD_OLD)
(
)
{
    CONVERT_TO_V2(CMD_NEW, LIST_PARAMS, NEW_PARAMS, list, list, count, NV_TRUE, // a count
        NvU64, NV_TRUE, NV_TRUE);
}
""",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_every_form_of_the_drivers_tables_is_read(tree: Path) -> None:
    controls, classes, escapes = Release(tree).facts()

    assert controls == {
        0x20800123: Params(16, (Pointer(8, 0, 4),)),
        0x20800124: Params(40, (Pointer(8), Pointer(24))),
        0x20800125: Params(24, (Pointer(8),), (16,)),
        0x20800126: Params(0),
        0x20801802: Params(16, (Pointer(8, 0, 8),), unsized=True),
        0xFD0104: Params(16, (), (8,), unsized=True),
    }
    assert classes == {0x40: Params(16, (Pointer(8),)), 0x80: Params(0)}
    assert escapes == {
        0x29: Params(8),
        0x2A: Params(16, (Pointer(8),)),
        0x2B: Params(16, (Pointer(0), Pointer(8))),
        201: Params(4, (), (0,)),
    }


def test_a_driver_whose_tables_have_another_form_is_refused(tree: Path) -> None:
    (tree / "src/nvidia/src/kernel/rmapi/resource_list.h").write_text("RS_ENTRY (CLASS_MEMORY, MEMORY_PARAMS)")

    with pytest.raises(Unreadable, match="another form: found nothing classes"):
        Release(tree)


def test_a_span_is_of_branches_one_after_the_other() -> None:
    old, new = Params(8), Params(16)
    facts = {"535.1": {1: old, 2: LEADS}, "545.1": {1: old}, "550.1": {1: new, 2: LEADS}, "550.2": {1: new, 2: LEADS}}

    tables = gather({tag: (table, {}, {}) for tag, table in facts.items()})

    assert tables[0] == {1: [(535, 545, old), (550, 550, new)], 2: [(535, 535, LEADS), (550, 550, LEADS)]}
    assert "PLAIN (0x1, 535, 545, 8), PLAIN (0x1, 550, 550, 16), LEADS (0x2, 535, 535)," in rendered(["535.1"], tables)


def test_releases_of_one_branch_that_differ_are_refused() -> None:
    releases = {"550.1": ({1: Params(8)}, {}, {}), "550.2": ({1: Params(16)}, {}, {})}

    with pytest.raises(Unreadable, match=r"550\.2 is not as 550\.1, of the same branch: 0x1"):
        gather(releases)
