/* The files by which processes call the driver. Under the tenant's lock, in its thread. */
#ifndef NVC_GUARD_CLIENT_FILES_H
#define NVC_GUARD_CLIENT_FILES_H

#include "rm/rm.h"

#include <stdint.h>

struct process;
struct tenant;

#define PROCESS_CLIENTS 32u /* of a process; the one that was not used for longest makes room */
struct client_file {
    uint32_t client;
    int descriptor; /* the process's */
    int file;       /* a copy */
    enum rm_node node;
    uint64_t used;  /* tenant->status.notifications then */
};

/* A copy of what the process has under this descriptor, the caller's. -errno: -ENOTTY: it is no node of the driver's; -EACCES: it was opened in
 * another container, which is counted; -ESRCH: the process has ended. Others can have the lock meanwhile. */
int process_file (struct tenant *tenant, struct process *process, int descriptor, enum rm_node *node);
/* The same of one that a call names: an exported object can come from another container. */
int named_file (struct tenant *tenant, struct process *process, int descriptor, enum rm_node *node);
/* As process_file, for calls of this client, not 0: asked for once, and kept here. */
int client_file (struct tenant *tenant, struct process *process, int descriptor, uint32_t client, enum rm_node *node);
/* The driver does not know the client by that file: it is asked for again with the next call. */
void client_file_drop (struct tenant *tenant, struct process *process, int descriptor, uint32_t client);
/* The client is gone. */
void client_files_forget (struct tenant *tenant, uint32_t client);
/* The process has ended, or is forgotten. */
void client_files_release (struct tenant *tenant, struct process *process);

#endif
