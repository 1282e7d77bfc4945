/* Where the params of controls hold pointers and descriptors. */
#include "rm/abi.h"
#include "rm/bytes.h"
#include "tap.h"

#include <string.h>

static const struct rm_abi *abi;
static uint8_t params[2128];

static struct rm_embedded of (uint32_t number, uint32_t size, bool expected)
{
    struct rm_embedded embedded;

    tap_ok (rm_embedded (abi, number, params, size, &embedded) == expected,
            expected ? "the params can be followed" : "the params cannot be followed");
    return embedded;
}

int main (void)
{
    struct rm_embedded embedded;

    abi = rm_abi_find ("580.159.04");
    set32 (params, 0, 100);
    set64 (params, 8, 0x1000);
    embedded = of (NV2080_CTRL_CMD_BUS_GET_INFO, 16, true);
    tap_ok (embedded.count == 1 && embedded.pieces[0].at == 8 && embedded.pieces[0].wanted.address == 0x1000 &&
                embedded.pieces[0].wanted.size == 800,
            "a list has as many elements as its count says");
    embedded = of (NV0080_CTRL_CMD_GPU_GET_CLASSLIST, 16, true);
    tap_ok (embedded.pieces[0].wanted.size == 400, "of the element's size");
    set32 (params, 0, 0x80000000);
    of (NV2080_CTRL_CMD_BUS_GET_INFO, 16, false);
    set32 (params, 0, 0);
    embedded = of (NV2080_CTRL_CMD_BUS_GET_INFO, 16, true);
    tap_ok (embedded.count == 1 && embedded.pieces[0].wanted.size == 0, "a pointer to nothing is still a pointer");
    set64 (params, 8, 0);
    embedded = of (NV2080_CTRL_CMD_BUS_GET_INFO, 16, true);
    tap_ok (embedded.count == 0, "none is none");
    of (NV2080_CTRL_CMD_BUS_GET_INFO, 3, false);
    of (NV2080_CTRL_CMD_BUS_GET_INFO, 15, false);
    of (NV2080_CTRL_CMD_BUS_GET_INFO, 24, false);
    set32 (params, 0, 64);
    for (unsigned i = 0; i < 3; i++)
        set64 (params, 8 + 8 * i, 0x2000 + i);
    embedded = of (NV0000_CTRL_CMD_SYSTEM_GET_BUILD_VERSION, 40, true);
    tap_ok (embedded.count == 3 && embedded.pieces[2].at == 24 && embedded.pieces[2].wanted.address == 0x2002 &&
                embedded.pieces[2].wanted.size == 64,
            "three strings of one length");
    set32 (params, 128, 8);
    set64 (params, 160, 0x3000);
    embedded = of (NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS, 176, true);
    tap_ok (embedded.count == 1 && embedded.pieces[0].wanted.size == 256, "a matrix has the square of its count");
    embedded = of (NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECTS_TO_FD, 2128, true);
    tap_ok (embedded.descriptor_at == 0 && embedded.count == 0, "a descriptor is named");
    of (NV0000_CTRL_CMD_OS_UNIX_CREATE_EXPORT_OBJECT_FD, 72, false);
    embedded = of (NV2080_CTRL_CMD_GPU_GET_GID_INFO, 256, true);
    tap_ok (embedded.count == 0 && embedded.descriptor_at == RM_NO_DESCRIPTOR, "plain params lead nowhere");
    return tap_done ();
}
