/*
 * The filter of ioctl requests (calls.h): which ones rm handles. Runs in every process of a container, on any thread,
 * for each ioctl of a program.
 */
#include "calls.h"
#include "rm/abi.h"

/* Escapes on the control node that allocate, free, name or query memory, or schedule (nv_escape.h), and UVM's requests,
 * which are plain numbers. All other requests pass. */
#define BIT(number) (1u << ((number) & 31))
const uint32_t call_low_bytes[8] = {
    [0] = BIT (UVM_UNREGISTER_SPACE),
    [1] = 1u << (0x27 - 0x20) | 1u << (0x29 - 0x20) | 1u << (0x2a - 0x20) | 1u << (0x2b - 0x20) | 1u << (0x34 - 0x20) |
          1u << (0x35 - 0x20) | BIT (UVM_REGISTER_GPU) | BIT (UVM_UNREGISTER_GPU) | BIT (UVM_MAP_EXTERNAL) | BIT (UVM_FREE),
    [2] = 1u << (0x4a - 0x40) | BIT (UVM_UNMAP_EXTERNAL) | BIT (UVM_CREATE_EXTERNAL) | BIT (UVM_MAP_SPARSE),
    [6] = 1u << (0xd3 - 0xc0),
};

bool call_is_of_uvm (uint32_t request)
{
    switch (request) {
    case UVM_UNREGISTER_SPACE:
    case UVM_MAP_EXTERNAL:
    case UVM_FREE:
    case UVM_REGISTER_GPU:
    case UVM_UNREGISTER_GPU:
    case UVM_UNMAP_EXTERNAL:
    case UVM_CREATE_EXTERNAL:
    case UVM_MAP_SPARSE:
        return true;
    default:
        return false;
    }
}
