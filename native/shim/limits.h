/*
 * Reading the limits file (share.h).
 *
 * It is mapped once and never looked at through a descriptor again: a mapping survives programs that close every
 * descriptor, and a look at the generation costs a load. Only a regular file of exactly LIMITS_SIZE is mapped; the host
 * changes it in place and never truncates it (a truncated mapping would raise SIGBUS).
 */
#ifndef NVC_SHIM_LIMITS_H
#define NVC_SHIM_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "rm/rm.h"
#include "shim/share.h"

struct stat;

/* The file at `path` mapped read-only, or NULL; *there says whether something has this name. */
const struct limits *limits_map (const char *path, bool *there);
/* A consistent copy that passes every check; false leaves something unusable in `copy`. Waits at most some
 * tenths of a second for a writer. */
bool limits_read (const struct limits *shared, struct limits *copy);
/* Are all fields of a copy what share.h allows, checksum included? */
bool limits_valid (const struct limits *copy);
/* CRC-32 (IEEE 802.3). */
uint32_t limits_checksum (const void *bytes, uint64_t size);

/* Which node of the driver an open file is. */
enum rm_node limits_node_kind (const struct limits *limits, const struct stat *file);
/* Index of a GPU, RM_NO_GPU when it is not named. */
int limits_find_gpu (const struct limits *limits, const uint8_t uuid[16]);

#endif
