/* The container's memory: copied out once, copied back once. */
#include "tenant.h"

#include <sys/uio.h>

bool memory_read (pid_t thread, uint64_t address, void *to, size_t size)
{
    struct iovec local = { to, size }, remote = { (void *) (uintptr_t) address, size };

    return size == 0 || process_vm_readv (thread, &local, 1, &remote, 1, 0) == (ssize_t) size;
}

bool memory_write (pid_t thread, uint64_t address, const void *from, size_t size)
{
    struct iovec local = { (void *) (uintptr_t) from, size }, remote = { (void *) (uintptr_t) address, size };

    return size == 0 || process_vm_writev (thread, &local, 1, &remote, 1, 0) == (ssize_t) size;
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
