/* The container's memory: copied out once, copied back once. */
#include "tenant.h"

#include <sys/uio.h>

bool memory_read (pid_t thread, uint64_t address, void *to, size_t size)
{
    struct iovec local = { to, size }, remote = { (void *) (uintptr_t) address, size };

    return size == 0 || process_vm_readv (thread, &local, 1, &remote, 1, 0) == (ssize_t) size;
}

bool memory_write_all (pid_t thread, const struct memory_piece *pieces, unsigned count)
{
    struct iovec local[8], remote[8];
    unsigned used = 0;
    size_t whole = 0;

    for (unsigned i = 0; i < count && used < 8; i++) {
        if (pieces[i].size == 0)
            continue;
        local[used] = (struct iovec) { (void *) (uintptr_t) pieces[i].from, pieces[i].size };
        remote[used++] = (struct iovec) { (void *) (uintptr_t) pieces[i].address, pieces[i].size };
        whole += pieces[i].size;
    }
    return used == 0 || process_vm_writev (thread, local, used, remote, used, 0) == (ssize_t) whole;
}

size_t memory_read_some (pid_t thread, uint64_t address, void *to, size_t size)
{
    /* Page by page: what lies before an unmapped page is read. */
    size_t done = 0;

    while (done < size) {
        size_t piece = 4096 - (size_t) ((address + done) % 4096);

        if (piece > size - done)
            piece = size - done;
        if (!memory_read (thread, address + done, (uint8_t *) to + done, piece))
            break;
        done += piece;
    }
    return done;
}
