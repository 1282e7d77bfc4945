/* What the libraries beside this file share: the calls of the driver that they follow, and how one is made past every preloaded library. Layouts: nvos.h. */
#ifndef INTERPOSE_CALLS_H
#define INTERPOSE_CALLS_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOC 0x2bu
#define CONTROL 0x2au
#define CONTROL_REQUEST 0xc020462aul
#define GROUP 0xa06cu
#define GRAPHICS 1u
#define DELAY 0x40u
#define SCHEDULE_GROUP 0xa06c0101u
#define SCHEDULE_CHANNEL 0xa06f0103u
#define SET_TIMESLICE 0xa06c0103u
#define SET_PREEMPTION 0x20801210u
#define NO_STATUS 0xffffu

struct alloc { /* NVOS64 as far as it is NVOS21 */
    uint32_t client, parent, object, number;
    uint64_t params;
};
struct control { /* NVOS54 */
    uint32_t client, object, command, flags;
    uint64_t params;
    uint32_t params_size, status;
};

/* An ALLOC, or a CONTROL. */
static inline bool is_followed (unsigned long request)
{
    uint32_t number = (uint32_t) request & 0xff, size = (uint32_t) request >> 16 & 0x3fff;

    return ((request >> 8) & 0xff) == 'F' && (number == ALLOC || (number == CONTROL && size == sizeof (struct control)));
}

static inline bool is_channel (const struct alloc *call) { return (call->number & 0xff) == 0x6f; }

/* Of an ALLOC's struct, after the call: NVOS64 or NVOS21. */
static inline uint32_t status_of (const void *argument, unsigned long request)
{
    uint32_t status;

    memcpy (&status, (const char *) argument + ((request >> 16 & 0x3fff) == 48 ? 40 : 28), sizeof (status));
    return status;
}

/* NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS: 12 engine. */
static inline uint32_t engine_of (const struct alloc *call)
{
    uint32_t engine = 0;

    if (call->params != 0)
        memcpy (&engine, (const char *) (uintptr_t) call->params + 12, sizeof (engine));
    return engine;
}

static inline int call_driver (int file, unsigned long request, void *argument)
{
    return (int) syscall (SYS_ioctl, file, request, argument);
}

static inline uint32_t control (int file, uint32_t client, uint32_t object, uint32_t command, void *params, uint32_t size)
{
    struct control call = { client, object, command, 0, (uintptr_t) params, size, NO_STATUS };

    return call_driver (file, CONTROL_REQUEST, &call) == 0 ? call.status : NO_STATUS;
}

#endif
