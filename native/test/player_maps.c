/* Managed memory of one process of guard_player: mappings of UVM's, which the simulated driver takes for resident. */
#include "player.h"

#include "device.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <unistd.h>

static struct {
    void *at;
    uint64_t bytes;
    int file;
} maps[TASK_MAPS];

void player_forget_maps (void) { memset (maps, 0, sizeof (maps)); }

static void change_resident (int file, int64_t bytes)
{
    struct sim_resident change = { .bytes = bytes };

    memcpy (change.uuid, kernel_uuid (), 16);
    ioctl (file, SIM_RESIDENT, &change);
}

int world_mmap (struct task *task, unsigned slot, uint64_t bytes)
{
    for (uint64_t i = 0; i < TASK_MAPS; i++) {
        uint64_t at = MAPPED_AT + (i << 32);

        if (maps[i].at != NULL || task->files[slot] == NULL)
            continue;
        if (mmap ((void *) (uintptr_t) at, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, (int) slot, (off_t) at) ==
            MAP_FAILED)
            return -errno;
        maps[i].at = (void *) (uintptr_t) at;
        maps[i].bytes = bytes;
        maps[i].file = fcntl ((int) slot, F_DUPFD_CLOEXEC, OWN_DESCRIPTOR);
        change_resident (maps[i].file, (int64_t) bytes);
        return 0;
    }
    return -ENOMEM;
}

void task_unmap (struct task *task, unsigned place)
{
    (void) task;
    if (maps[place].at == NULL)
        return;
    change_resident (maps[place].file, -(int64_t) maps[place].bytes);
    munmap (maps[place].at, maps[place].bytes);
    close (maps[place].file);
    maps[place].at = NULL;
}

/* With flag 2 the ranges stay. */
void player_leave_space (const struct task *task)
{
    bool is_shared = false;

    for (unsigned i = 0; i < TASK_FILES; i++)
        is_shared |= task->files[i] != NULL && (task->files[i]->at & 2) != 0;
    for (unsigned i = 0; i < TASK_MAPS; i++)
        if (maps[i].at != NULL && !is_shared)
            change_resident (maps[i].file, -(int64_t) maps[i].bytes);
}
