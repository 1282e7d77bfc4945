/*
 * Which descriptors are open on the driver's nodes, and which of them are the same open file. Descriptors become known
 * by the first call on them that matters; dup, dup2 and dup3 are followed, duplicates made by other means are found
 * with kcmp.
 */
#ifndef NVC_SHIM_FILES_H
#define NVC_SHIM_FILES_H

#include <stdbool.h>
#include <stdint.h>

#include "raw.h"
#include "rm/rm.h"

#define FILES_DESCRIPTORS (1 << 20)
#define FILES_MOST 4096u
/* Room for these is there from the start: most programs never need more,
 * and a table of megabytes costs a start dear. */
#define FILES_FIRST_DESCRIPTORS 256u
#define FILES_FIRST 32u

struct open_file {
    uint32_t kind;        /* enum rm_node */
    uint32_t descriptors; /* how many are known; 0: this entry is free */
    uint32_t serial;
    int32_t descriptor; /* one of them */
};

struct files_room {
    uint32_t by_descriptor[FILES_FIRST_DESCRIPTORS];
    struct open_file files[FILES_FIRST];
};

struct files {
    uint32_t *by_descriptor; /* index in `files`, 0: not known; NULL: no driver node was ever seen */
    uint32_t descriptors;    /* entries of by_descriptor: set after it, and never less than before */
    uint32_t most;           /* entries of files */
    struct open_file *files;
    uint32_t high;
    uint32_t serial;
};

/* Some loads: may this descriptor be one of the driver's? */
static inline bool files_may_know (const struct files *files, int descriptor)
{
    return (uint32_t) descriptor < __atomic_load_n (&files->descriptors, __ATOMIC_ACQUIRE) &&
           LOAD_RELAXED (LOAD_RELAXED (files->by_descriptor)[descriptor]) != 0;
}

/* The same as files_open, where the descriptor is known to be of an open file of that kind; 0: it is not. */
static inline uint64_t files_known (const struct files *files, int descriptor, enum rm_node kind)
{
    uint32_t index = (uint32_t) descriptor < files->descriptors ? files->by_descriptor[descriptor] : 0;

    return index && files->files[index].kind == (uint32_t) kind ? (uint64_t) files->files[index].serial << 32 | index
                                                                 : 0;
}

/* room: zeros, and there as long as `files` is used. Nothing when it has begun. */
void files_begin (struct files *files, struct files_room *room);
/* A child's: nothing is known. */
void files_forget (struct files *files);
/* The name of the open file, never 0 unless there are too many. *closed: a file that is gone, since its last descriptor
 * is another file now (closed behind our back), or 0. */
uint64_t files_open (struct files *files, int descriptor, enum rm_node kind, uint64_t *closed);
/* A descriptor of an open file, -1 when it has none. */
int files_descriptor (const struct files *files, uint64_t file);
void files_duplicate (struct files *files, int from, int to);
/* To be called before the descriptor is closed. The file's name when nothing refers to it any more, else 0. */
uint64_t files_close (struct files *files, int descriptor);

#endif
