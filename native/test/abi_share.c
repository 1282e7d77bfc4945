/* Prints "structure.member offset size" for every structure of share.h, the structure's size as member "*", and every
 * constant that the Python side repeats as "NAME 0 value". */
#include "shim/share.h"

#include <stddef.h>
#include <stdio.h>

#define WHOLE(type) printf ("%s.* 0 %zu\n", #type, sizeof (struct type));
#define MEMBER(type, name)                                                                                                         \
    printf ("%s.%s %zu %zu\n", #type, #name, offsetof (struct type, name), sizeof (((struct type *) 0)->name));
#define NUMBER(name) printf ("%s 0 %llu\n", #name, (unsigned long long) (name));

static void print_limits (void)
{
    WHOLE (limits)
    MEMBER (limits, magic)
    MEMBER (limits, version)
    MEMBER (limits, size)
    MEMBER (limits, generation)
    MEMBER (limits, checksum)
    MEMBER (limits, flags)
    MEMBER (limits, gpu_count)
    MEMBER (limits, node_count)
    MEMBER (limits, period)
    MEMBER (limits, driver)
    MEMBER (limits, container)
    MEMBER (limits, gpus)
    MEMBER (limits, nodes)
    WHOLE (limits_gpu)
    MEMBER (limits_gpu, uuid)
    MEMBER (limits_gpu, memory)
    MEMBER (limits_gpu, cap)
    MEMBER (limits_gpu, weight)
    MEMBER (limits_gpu, priority)
    MEMBER (limits_gpu, latency)
    MEMBER (limits_gpu, idle)
    MEMBER (limits_gpu, request)
    MEMBER (limits_gpu, most)
    MEMBER (limits_gpu, flags)
    WHOLE (limits_node)
    MEMBER (limits_node, kind)
    MEMBER (limits_node, minor)
    MEMBER (limits_node, device)
    MEMBER (limits_node, inode)
}

static void print_region (void)
{
    WHOLE (region_header)
    MEMBER (region_header, magic)
    MEMBER (region_header, version)
    MEMBER (region_header, page)
    MEMBER (region_header, slots)
    MEMBER (region_header, high)
    MEMBER (region_header, unknown_driver)
    MEMBER (region_header, memory)
    MEMBER (region_header, cap)
    MEMBER (region_header, weight)
    MEMBER (region_header, notes)
    WHOLE (region_note)
    WHOLE (region_slot)
    MEMBER (region_slot, state)
    MEMBER (region_slot, generation)
    MEMBER (region_slot, pid_namespace)
    MEMBER (region_slot, pid)
    MEMBER (region_slot, threads_cap)
    MEMBER (region_slot, start_time)
    MEMBER (region_slot, name)
    MEMBER (region_slot, memory)
    MEMBER (region_slot, pending)
    MEMBER (region_slot, managed)
    MEMBER (region_slot, groups)
    MEMBER (region_slot, frozen_ns)
    MEMBER (region_slot, channel_version)
    MEMBER (region_slot, channel_count)
    MEMBER (region_slot, channels)
    WHOLE (region_channel)
    MEMBER (region_channel, client)
    MEMBER (region_channel, subdevice)
    MEMBER (region_channel, group)
    MEMBER (region_channel, channel)
    MEMBER (region_channel, descriptor)
    MEMBER (region_channel, gpu)
}

int main (void)
{
    print_limits ();
    print_region ();
    NUMBER (SHARE_MAX_GPUS)
    NUMBER (SHARE_MAX_NODES)
    NUMBER (LIMITS_MAGIC)
    NUMBER (LIMITS_VERSION)
    NUMBER (LIMITS_SIZE)
    NUMBER (LIMITS_PAUSED)
    NUMBER (LIMITS_GRAPHICS)
    NUMBER (LIMITS_OVERSUBSCRIBE)
    NUMBER (PRIORITY_NORMAL)
    NUMBER (PRIORITY_LOW)
    NUMBER (PRIORITY_HIGH)
    NUMBER (REGION_MAGIC)
    NUMBER (REGION_VERSION)
    NUMBER (REGION_PAGE)
    NUMBER (REGION_SLOTS)
    NUMBER (REGION_SIZE)
    NUMBER (REGION_LOCKS)
    NUMBER (REGION_ADMISSION)
    NUMBER (REGION_CHANNELS)
    return 0;
}
