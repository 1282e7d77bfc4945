/* The driver's numbers and params that levers.c uses. */
#ifndef NVC_BENCH_LEVERS_H
#define NVC_BENCH_LEVERS_H

#include <stdint.h>

/* nv_escape.h, nvos.h; ctrl2080gr.h, ctrl2080fifo.h, ctrla06c.h, ctrla06fgpfifo.h; class/clc36f.h (USERD) */
#define REQUEST(number, type) _IOWR ('F', number, type)
#define CONTROL 0x2au
#define ALLOC 0x2bu
#define DUPLICATE 0x34u
#define SHARE 0x35u
#define MAP_MEMORY 0x4eu
#define REGISTER_FD 0xc9u
#define CLIENT 0x41u
#define DEVICE 0x80u
#define SUBDEVICE 0x2080u
#define SET_TIMESLICE 0xa06c0103u
#define SET_INTERLEAVE 0xa06c0107u
#define RESTART_RUNLIST 0xa06f0111u
#define DISABLE_CHANNELS 0x2080110bu
#define FIFO_GET_INFO 0x20801109u
#define SET_PREEMPTION_MODE 0x20801210u
#define GET_CTXSW_STATS 0x20801215u
#define GET_CTX_BUFFER_SIZE 0x20801218u
#define GET_RESIDENT_CHANNEL 0x2080121cu
#define GP_GET 0x88u
#define GP_PUT 0x8cu
#define GRAPHICS 1u /* NV2080_ENGINE_TYPE_GR0 */

struct control {
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t size, status;
};
struct alloc {
    uint32_t client, parent, object, class;
    uint64_t params;
    uint32_t size, status;
};
struct duplicate {
    uint32_t client, parent, object, from_client, from, flags, status;
};
struct share {
    uint32_t client, object, target, mask;
    uint16_t type;
    uint8_t action, pad;
    uint32_t status;
};
struct map {
    uint32_t client, device, memory, pad;
    uint64_t offset, length, address;
    uint32_t status, flags;
    int32_t fd, pad2;
};
struct disable {
    uint8_t is_off;
    uint32_t count;
    uint8_t only_scheduling, rewind;
    uint64_t event;
    uint32_t clients[64], channels[64];
};
_Static_assert (sizeof (struct map) == 56 && sizeof (struct disable) == 536 && sizeof (struct alloc) == 32, "the driver's");

#endif
