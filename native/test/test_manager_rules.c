/* The simulated manager's permissions, checks and statuses. */
#include "manager_bed.h"
#include "tap.h"

#include <errno.h>

static void clients (struct manager_file *file, uint32_t client)
{
    struct manager_file *other = manager_open (bed, MANAGER_CONTROL, 0);
    struct alloc named = { .object = 0xc1d00777 };

    tap_ok (client >> 16 == 0xc1d0, "the manager chooses a client's handle");
    tap_ok (bed_ioctl (file, ALLOC, &named) == 0 && named.status == 0x1F, "a caller cannot");
    tap_ok (bed_take (other, client, 1, GIB) == 0x23, "another open file may not use it (0x23)");
    tap_ok (bed_free (other, client, client) == 0x23 && bed_client (file, 0) != client, "nor free it");
    manager_release (other);
}

static void objects (struct manager_file *file, uint32_t client)
{
    uint32_t group[32] = { 0, 0, 0, 1, 0 }, device[14] = { 7 };
    struct alloc call = { .client = client, .parent = client, .class_number = 0x80 };

    tap_ok (bed_take (file, client, SUBDEVICE, GIB) == 0x19, "a used handle is refused");
    tap_ok (bed_alloc (file, client, client, 9, 0x40, group) == 0x36, "a parent of the wrong kind is refused");
    tap_ok (bed_alloc (file, client, 0xdead, 9, 0x90F1, NULL) == 0x57, "so is one that does not exist, with another status");
    tap_ok (bed_alloc (file, client, client, 9, 0x80, device) == 0x1F, "there is no eighth GPU");
    tap_ok (bed_ioctl (file, ALLOC, &call) == 0 && call.status == 0 && call.object != 0, "a handle of 0 is chosen");
    tap_ok (bed_alloc (file, client, DEVICE, 9, 0x1234, NULL) == 0x22, "an unknown class is refused (0x22)");
    tap_ok (bed_alloc (file, client, DEVICE, 9, 0x73, NULL) == 0x56,
            "a display class on a GPU without displays is unsupported (0x56)");
    tap_ok (bed_control (file, client, SUBDEVICE, 0x20807fff, group, 4) == 0x56, "so is an unknown control");
    tap_ok (bed_control (file, client, 0xdead, 0x2080014a, group, 4) == 0x1F, "params of a wrong size are refused first");
    tap_ok (bed_control (file, client, 0xdead, 0xa06c0104, group, 8) == 0x57, "a control needs its object (0x57)");
    tap_ok (bed_control (file, client, SUBDEVICE, 0x20801303, group, 4) == 0x1F, "and parameters of its size (0x1F)");
    for (uint32_t i = 0, parent = client; i < 100000; parent = 0x10000 + i++)
        bed_alloc (file, client, parent, 0x10000 + i, 0x79, NULL);
    tap_ok (bed_free (file, client, 0x10000) == 0, "a tree may have any depth");
}

static void privileges (struct manager_file *file, uint32_t client)
{
    uint8_t params[8] = { 0 };

    tap_ok (bed_alloc (file, client, DEVICE, 9, 0xC2, NULL) == 0x1B, "physical memory needs CAP_SYS_ADMIN (0x1B)");
    tap_ok (bed_control (file, client, SUBDEVICE, 0x20801110, params, 8) == 0x1B, "so do some controls");
    bed_task.privileged = true;
    tap_ok (bed_alloc (file, client, DEVICE, 9, 0xC2, NULL) == 0 && bed_used (0) == 0,
            "with which it is allocated, and it is no new memory");
    bed_task.privileged = false;
}

static void pointers (struct manager_file *file, uint32_t client)
{
    struct alloc call = { .client = client, .parent = DEVICE, .object = 9, .class_number = 0x40, .params = 16, .params_size = 128 };

    tap_ok (bed_ioctl (file, ALLOC, (void *) 16) == -EFAULT, "an unreadable struct is EFAULT");
    tap_ok (bed_ioctl (file, ALLOC, &call) == 0 && call.status == 0x1E, "unreadable parameters are status 0x1E");
    call.params = 0;
    tap_ok (bed_ioctl (file, ALLOC, &call) == 0 && call.status == 0x1F, "and missing ones 0x1F");
    tap_ok (bed_ioctl (file, _IOWR ('F', 0x2B, uint64_t), &call) == -EINVAL, "another size is EINVAL");
    tap_ok (bed_ioctl (file, _IOC (_IOC_READ, 'x', 0x2B, sizeof (call)), &call) == 0 && call.status == 0x1F,
            "the driver ignores type byte and direction");
    tap_ok (bed_ioctl (file, _IOWR ('F', 0x2C, struct alloc), &call) == -EINVAL, "an unknown escape is EINVAL");
}

/* rmapi_deprecated_control.c: some structs are read whole, and their pointers dereferenced, whatever size is given. */
static void deprecated (struct manager_file *file, uint32_t client)
{
    char text[3][64] = { "" };
    uint64_t version[5] = { 64, (uintptr_t) text[0], (uintptr_t) text[1], (uintptr_t) text[2], 0 }, caps[2] = { 5, 16 };
    uint8_t table[5] = { 0 };

    tap_ok (bed_control (file, client, client, 0x101, version, 0) == 0 && strcmp (text[2], bed_machine.driver) == 0,
            "the driver's version is written to params of any size");
    version[2] = 16;
    tap_ok (bed_control (file, client, client, 0x101, version, 40) == 0x3A, "an unwritable address is 0x3A");
    version[2] = 0;
    tap_ok (bed_control (file, client, client, 0x101, version, 40) == 0 && version[0] == strlen (bed_machine.driver) + 1,
            "without one of the addresses the length is returned");
    tap_ok (bed_control (file, client, DEVICE, 0x801b01, caps, 4) == 0x1E, "an unreadable list is 0x1E");
    caps[1] = (uintptr_t) table;
    tap_ok (bed_control (file, client, DEVICE, 0x801b01, caps, 16) == 0 && table[4] != 0, "a readable one is written");
}

static void processes (struct manager_file *file, uint32_t client)
{
    static uint32_t pids[953];
    static struct {
        uint32_t count, pad;
        struct {
            uint32_t pid, index, result, pad;
            uint64_t memory[6];
            uint32_t instances[2];
        } entries[200];
    } info;
    struct manager_file *second = manager_open (bed, MANAGER_CONTROL, 0);

    bed_take (file, client, 1, GIB);
    bed_task.process = 102;
    uint32_t other = bed_client (second, 0);
    bed_take (second, other, 1, 2 * GIB);
    bed_task.process = 100;
    pids[1] = 0x2080;
    tap_ok (bed_control (file, client, SUBDEVICE, 0x2080018d, pids, 3812) == 0 && pids[2] == 2 && pids[3] + pids[4] == 202,
            "processes with a subdevice are named, each once");
    info.count = 3;
    info.entries[0].pid = 100;
    info.entries[1].pid = 102;
    info.entries[2].pid = 104;
    tap_ok (bed_control (file, client, SUBDEVICE, 0x2080018e, &info, 14408) == 0 && info.entries[0].memory[0] == GIB &&
                info.entries[1].memory[0] == 2 * GIB && info.entries[2].result == 0x57,
            "memory is reported by allocating process");
    bed_task.process = 101;
    tap_ok (bed_control (file, client, SUBDEVICE, 0x2080018d, pids, 3812) == 0 && pids[2] == 0,
            "a process in another pid namespace is not reported");
    bed_task.process = 100;
    bed_free (file, client, 1);
    manager_release (second);
}

static void managed_node (struct manager_file *file, uint32_t client)
{
    struct manager_file *node = manager_open (bed, MANAGER_UVM, 0);
    uint32_t call[10] = { 0 };
    uint32_t space[8] = { 0 }, params[14] = { 0 };

    tap_ok (bed_ioctl (node, 38, call) == 0 && call[4] == 0x40, "the UVM node must be initialised first");
    tap_ok (bed_ioctl (node, 0x30000001, call) == 0 && call[2] == 0, "which can be done");
    tap_ok (bed_ioctl (node, 37, call) == 0 && call[9] == 0x12, "a GPU that does not exist cannot be registered (0x12)");
    memcpy (call, (const uint8_t[]) { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 1 }, 16);
    tap_ok (bed_ioctl (node, 37, call) == 0 && call[9] == 0, "by its UUID it can");
    memcpy (space, call, 16);
    space[5] = client;
    space[6] = 0x90;
    tap_ok (bed_ioctl (node, 25, space) == 0 && space[7] == 0x33, "a missing address space cannot be registered");
    bed_alloc (file, client, DEVICE, 0x90, 0x90F1, params);
    bed_task.process = 102;
    tap_ok (bed_ioctl (node, 25, space) == 0 && space[7] == 0x1B, "nor by a process that does not own its client");
    bed_task.process = 100;
    tap_ok (bed_ioctl (node, 25, space) == 0 && space[7] == 0, "its own process can, whatever descriptor it names");
    tap_ok (bed_ioctl (node, 12345, call) == -EINVAL, "an unknown number is EINVAL");
    bed_task.descriptors[2] = NULL;
    manager_release (node);
}

/* PAGEABLE_MEM_ACCESS of a new file that is initialised with these flags; 2: it was refused. */
static uint32_t pageable (enum machine_pageable kind, uint64_t flags)
{
    struct manager_file *node = manager_open (bed, MANAGER_UVM, 0);
    struct {
        uint64_t flags;
        uint32_t status, spare;
    } initialize = { flags, 0xee, 0 };
    struct {
        uint8_t pageable, spare[3];
        uint32_t status;
    } question = { 0xee, { 0 }, 0xee };

    bed_machine.pageable = kind;
    bed_ioctl (node, 0x30000001, &initialize);
    bed_ioctl (node, 39, &question);
    bed_machine.pageable = PAGEABLE_OFF;
    manager_release (node);
    return initialize.status != 0 || question.status != 0 ? 2 : question.pageable;
}

static void ordinary_memory (void)
{
    struct manager_file *node = manager_open (bed, MANAGER_UVM, 0);
    uint32_t call[4] = { 1, 0, 0xee, 0 };

    tap_ok (pageable (PAGEABLE_OFF, 0) == 0 && pageable (PAGEABLE_OFF, 1) == 0,
            "ordinary memory stays where it is on most machines");
    tap_ok (pageable (PAGEABLE_HMM, 0) == 1 && pageable (PAGEABLE_HMM, 1) == 0,
            "with HMM it can migrate to video memory, but not for a file that disables it (flag 1)");
    tap_ok (pageable (PAGEABLE_ATS, 0) == 1 && pageable (PAGEABLE_ATS, 1) == 1, "with ATS whatever the file's flag");
    tap_ok (pageable (PAGEABLE_HMM, 2) == 0 && pageable (PAGEABLE_ATS, 2) == 0,
            "and never for a file of several processes (flag 2)");
    tap_ok (pageable (PAGEABLE_HMM, 4) == 2, "an unknown flag is refused");
    tap_ok (bed_ioctl (node, 0x30000001, call) == 0 && call[2] == 0 && bed_ioctl (node, 0x30000001, call) == 0 && call[2] == 0,
            "a file can be initialised again in the same way");
    call[0] = 0;
    tap_ok (bed_ioctl (node, 0x30000001, call) == 0 && call[2] == 0x1F, "but not with other flags (0x1F)");
    manager_release (node);
}

static void faults (struct manager_file *file, uint32_t client)
{
    struct sim_fault fault = { .escape = 0x2B, .number = 0x40, .status = 0x65, .after = 2 };

    bed_ioctl (file, SIM_FAULT, &fault);
    tap_ok (bed_take (file, client, 1, MIB) == 0 && bed_take (file, client, 2, MIB) == 0x65 && bed_take (file, client, 3, MIB) == 0,
            "an injected fault applies to the n-th call, once");
    fault = (struct sim_fault) { .escape = 0xff, .status = 0x0F };
    bed_ioctl (file, SIM_FAULT, &fault);
    tap_ok (bed_take (file, client, 4, MIB) == 0x0F && bed_free (file, client, 1) == 0x0F,
            "a lost GPU returns its status from every call");
    fault.status = 0;
    bed_ioctl (file, SIM_FAULT, &fault);
    tap_ok (bed_free (file, client, 1) == 0, "until it is restored");
}

/* Every number with every small size, on every node, with garbage: each call must return. */
static void garbage (void)
{
    static uint8_t head[16384];
    unsigned strange = 0;

    for (enum manager_node node = MANAGER_CONTROL; node <= MANAGER_UVM_TOOLS; node++) {
        struct manager_file *file = manager_open (bed, node, 0);
        for (uint32_t i = 0; i < 256 * 70 * 3; i++) {
            uint32_t number = i & 0xff, size = (i >> 8) % 70, fill = (i >> 8) / 70;
            memset (head, fill == 0 ? 0 : fill == 1 ? 0xff : 0x02, sizeof (head));
            size = size < 66 ? size : size == 66 ? 184 : size == 67 ? 2304 : size == 68 ? 560 : 16383;
            int result = bed_ioctl (file, _IOC (3U, fill == 2 ? 0x53U : 0x46U, number, size), head);
            strange += result != 0 && result != -EINVAL && result != -ENOTTY && result != -EFAULT && result != -ENOSPC;
        }
        manager_release (file);
    }
    tap_ok (strange == 0, "every call returns, whatever its number and size");
}

static void waiting (struct manager_file *file, uint32_t client)
{
    uint32_t group[5] = { 0, 0, 0, 1, 0 };
    uint8_t channel[368] = { 0 };
    struct sim_progress progress = { .client = client, .channel = 0x201, .until = 1, .timeout_ns = 5 * MILLISECOND };
    struct sim_submit work = { .client = client, .channel = 0x201, .nanoseconds = 2 * MILLISECOND, .count = 1 };

    bed_alloc (file, client, DEVICE, 0x200, 0xA06C, group);
    bed_alloc (file, client, 0x200, 0x201, 0xC86F, channel);
    manager_clock (bed, SIM_CLOCK_REAL, 0);
    bed_ioctl (file, SIM_PROGRESS, &progress);
    tap_ok (progress.finished == 0 && progress.status == 0, "a wait for work that is not submitted ends in time");
    bed_ioctl (file, SIM_SUBMIT, &work);
    progress.timeout_ns = 60000 * MILLISECOND;
    tap_ok (bed_ioctl (file, SIM_PROGRESS, &progress) == 0 && progress.finished == 1 && progress.busy_ns == 2 * MILLISECOND,
            "in real time, work is waited for until it is done");
    progress.until = 2;
    manager_stop (bed);
    tap_ok (bed_ioctl (file, SIM_PROGRESS, &progress) == -EINTR, "the manager's end ends every wait");
}

/* A GPU's node that was registered with a control file uses that one's clients, and holds a reference. */
static void registered (void)
{
    struct manager_file *control = manager_open (bed, MANAGER_CONTROL, 0), *node = manager_open (bed, MANAGER_GPU, 0);
    uint32_t client = bed_client (control, 0);
    struct {
        uint32_t client, parent, object, class_number, flags, pad;
        uint64_t memory, limit;
        uint32_t status, pad2;
        int32_t descriptor;
        uint32_t pad3;
    } call = { .client = client, .parent = DEVICE, .object = 0x77, .class_number = 0x71, .limit = 4095 };
    const uint32_t describe = (uint32_t) _IOC (3U, 'F', 0x27, sizeof (call)), join = (uint32_t) _IOC (3U, 'F', 201, 4);
    const uint64_t before = bed_used (0);
    int32_t descriptor = 2;

    bed_task.descriptors[2] = control;
    bed_task.descriptors[3] = node;
    tap_ok (bed_ioctl (control, describe, &call) == -EINVAL, "memory of the caller is described on a GPU's node only");
    tap_ok (bed_ioctl (node, describe, &call) == 0 && call.status == 0x23, "which has no clients of its own");
    tap_ok (bed_ioctl (node, join, &descriptor) == 0, "until it is registered with the control file");
    tap_ok (bed_ioctl (node, describe, &call) == 0 && call.status == 0, "then it uses that one's");
    tap_ok (bed_ioctl (node, join, &descriptor) == -EINVAL, "a second time it cannot be");
    tap_ok (bed_free (node, client, 0x77) == 0xfffff, "objects are freed on the control file");
    descriptor = 3;
    tap_ok (bed_ioctl (control, join, &descriptor) == -EINVAL, "with a GPU's node nothing can be registered");
    bed_take (control, client, 1, GIB);
    bed_task.descriptors[2] = bed_task.descriptors[3] = NULL;
    manager_release (control);
    tap_ok (bed_used (0) == before + GIB, "objects of the clients exist after the close of the control file");
    manager_release (node);
    tap_ok (bed_used (0) == before, "and ends with the node");
}

int main (void)
{
    bed_start ();
    struct manager_file *file = manager_open (bed, MANAGER_CONTROL, 0);
    uint32_t client = bed_client (file, 0);

    clients (file, client);
    objects (file, client);
    privileges (file, client);
    pointers (file, client);
    deprecated (file, client);
    processes (file, client);
    managed_node (file, client);
    ordinary_memory ();
    faults (file, client);
    garbage ();
    waiting (file, client);
    registered ();
    bed_stop ();
    return tap_done ();
}
