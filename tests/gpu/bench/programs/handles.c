/*
 * A library to be preloaded: it writes down which scheduling objects a CUDA program makes, for levers.c.
 *
 * HANDLES: a file, to which a line is added for each object (hexadecimal, but for FD):
 *   device|subdevice|group|channel CLIENT PARENT OBJECT FD ENGINE USERD OFFSET      ENGINE of a group; USERD, OFFSET of a channel
 * Layouts: nvos.h, alloc/alloc_channel.h of the driver's headers.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ALLOC 0x2bu
#define DEVICE 0x80u
#define SUBDEVICE 0x2080u
#define GROUP 0xa06cu

struct alloc { /* NVOS64, and NVOS21 as far as the pointer */
    uint32_t client, parent, object, number;
    uint64_t params;
};

static uint32_t at (const void *data, unsigned offset)
{
    uint32_t value;

    memcpy (&value, (const char *) data + offset, sizeof (value));
    return value;
}

static void note (int file, const struct alloc *call)
{
    const char *path = getenv ("HANDLES"), *name = NULL;
    const void *params = (const void *) (uintptr_t) call->params;
    uint32_t engine = 0, userd = 0;
    uint64_t offset = 0;
    int out;

    if (call->number == DEVICE)
        name = "device";
    else if (call->number == SUBDEVICE)
        name = "subdevice";
    else if (call->number == GROUP) {
        name = "group";
        engine = params != NULL ? at (params, 12) : 0;
    } else if (call->number > 0x1000 && (call->number & 0xff) == 0x6f) { /* *_CHANNEL_GPFIFO_* */
        name = "channel";
        userd = params != NULL ? at (params, 32) : 0;
        offset = params != NULL ? at (params, 64) : 0;
    }
    out = name != NULL && path != NULL ? open (path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
    if (out < 0)
        return;
    dprintf (out, "%s %x %x %x %d %x %x %llx\n", name, call->client, call->parent, call->object, file, engine, userd,
             (unsigned long long) offset);
    close (out);
}

int ioctl (int file, unsigned long request, ...)
{
    uint32_t size = (uint32_t) request >> 16 & 0x3fff;
    va_list list;
    void *argument;
    int result;

    va_start (list, request);
    argument = va_arg (list, void *);
    va_end (list);
    result = (int) syscall (SYS_ioctl, file, request, argument);
    if ((request & 0xffff) == ('F' << 8 | ALLOC) && result == 0 && at (argument, size == 48 ? 40 : 28) == 0)
        note (file, argument);
    return result;
}
