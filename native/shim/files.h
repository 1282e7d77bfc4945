/*
 * Which descriptors are open on the driver's nodes, and which of them share an open file description. A descriptor is
 * tracked from the first relevant call on it; dup, dup2 and dup3 are interposed, other duplicates are found with kcmp.
 * Implemented in files.c.
 */
#ifndef NVC_SHIM_FILES_H
#define NVC_SHIM_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "raw.h"
#include "rm/rm.h"

#define FILES_DESCRIPTORS (1 << 20)
#define FILES_MAX 4096u
/* Preallocated in struct pages: enough for most programs, and a table of megabytes would slow every start. */
#define FILES_INITIAL_DESCRIPTORS 256u
#define FILES_INITIAL 32u

struct open_file {
    uint32_t kind;        /* enum rm_node */
    uint32_t descriptors; /* tracked ones; 0: this entry is free */
    uint32_t serial;
    int32_t descriptor; /* one of them */
};

struct files_initial {
    uint32_t by_descriptor[FILES_INITIAL_DESCRIPTORS];
    struct open_file files[FILES_INITIAL];
};

struct files {
    uint32_t *by_descriptor; /* index in `files`, 0: not tracked; NULL: no driver node was opened yet */
    uint32_t descriptors;    /* entries of by_descriptor: set after it, never shrinks */
    uint32_t capacity;       /* entries of files */
    struct open_file *files;
    uint32_t high;
    uint32_t serial;
};

/* Whether this descriptor may be one of the driver's. Lock-free, a few loads. */
static inline bool files_may_track (const struct files *files, int descriptor)
{
    return (uint32_t) descriptor < __atomic_load_n (&files->descriptors, __ATOMIC_ACQUIRE) &&
           LOAD_RELAXED (LOAD_RELAXED (files->by_descriptor)[descriptor]) != 0;
}

/* files_open for a descriptor that is tracked as of that kind; 0: it is not. */
static inline uint64_t files_tracked (const struct files *files, int descriptor, enum rm_node kind)
{
    uint32_t index = (uint32_t) descriptor < files->descriptors ? files->by_descriptor[descriptor] : 0;

    return index && files->files[index].kind == (uint32_t) kind ? (uint64_t) files->files[index].serial << 32 | index : 0;
}

/* room: zeroed, valid as long as `files`. Does nothing the second time. */
void files_begin (struct files *files, struct files_initial *room);
/* In a forked child: nothing is tracked. */
void files_clear (struct files *files);
/* The id of the open file; 0: there are too many. *closed: the id of a file whose last descriptor turned out to be
 * reused (closed by a call that is not interposed), or 0. */
uint64_t files_open (struct files *files, int descriptor, enum rm_node kind, uint64_t *closed);
/* A descriptor of the open file, -1: none. */
int files_descriptor (const struct files *files, uint64_t file);
void files_duplicate (struct files *files, int from, int to);
/* To be called before the descriptor is closed. The file's id when this is its last descriptor, else 0. */
uint64_t files_close (struct files *files, int descriptor);

#endif
