/* The container's memory. */
#ifndef NVC_GUARD_MEMORY_H
#define NVC_GUARD_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct tenant;

#define TENANT_GUESSES 64u
/* Where the params of a call lay the last time that its struct lay there. */
struct params_guess {
    uint64_t address, params; /* in the container: of the struct, of the params */
    uint32_t request, size;   /* size 0: nothing here */
};

/* All of it or an error. tenant: under its lock, which others can have meanwhile; NULL: no lock is held. */
bool memory_read (struct tenant *tenant, pid_t thread, uint64_t address, void *to, size_t size);
/* The struct of a call into tenant->head and, in the same system call, what it most likely points at into
 * tenant->params. */
bool memory_read_head (struct tenant *tenant, pid_t thread, uint64_t address, uint32_t request, size_t size);
/* What it does point at, into tenant->params: nothing is left to do if that was foreseen. */
bool memory_read_params (struct tenant *tenant, pid_t thread, uint64_t params, uint32_t size);
struct memory_piece {
    uint64_t address;
    const void *from;
    size_t size;
};
/* Up to 8 pieces, in one system call. */
bool memory_write_all (struct tenant *tenant, pid_t thread, const struct memory_piece *pieces, unsigned count);

#endif
