/*
 * Reading the limits file (share.h). Implemented in limits.c.
 *
 * The file is mapped once and its descriptor closed: the mapping survives programs that close every descriptor, and a
 * check of the generation is one load. Only a regular file of exactly LIMITS_SIZE is mapped; the host changes it in
 * place and never truncates it (access to a truncated mapping raises SIGBUS).
 */
#ifndef NVC_SHIM_LIMITS_H
#define NVC_SHIM_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "rm/rm.h"
#include "shim/share.h"

struct stat;

/* The file at `path` mapped read-only, or NULL; *there: whether the path exists. */
const struct limits *limits_map (const char *path, bool *there);
/* Takes a consistent copy that passes every check; on false the content of `copy` is undefined. Waits at most some
 * tenths of a second for a writer. */
bool limits_read (const struct limits *shared, struct limits *copy);
/* Whether all fields of a copy are as share.h defines them, checksum included. */
bool limits_valid (const struct limits *copy);
/* CRC-32 (IEEE 802.3). */
uint32_t limits_checksum (const void *bytes, uint64_t size);

/* The kind of driver node with this stat; RM_NODE_OTHER: none. */
enum rm_node limits_node_kind (const struct limits *limits, const struct stat *file);
/* Index of the GPU in the limits, RM_NO_GPU: not in there. */
int limits_find_gpu (const struct limits *limits, const uint8_t uuid[16]);

#endif
