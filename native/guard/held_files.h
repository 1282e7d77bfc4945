/* Copies of the files of clients, and the thread that closes them. */
#ifndef NVC_GUARD_HELD_FILES_H
#define NVC_GUARD_HELD_FILES_H

#include <stdbool.h>
#include <stdint.h>

struct guard;
struct rm_call;
struct tenant;

/* A copy of an open file of the control node, so that what its clients have does not go before it is probed. */
#define HELD_FILES 1024u
struct held_file {
    uint32_t client;
    int file;
    uint64_t serial; /* of the process that made the client; if that is gone, of the one that uses it */
};

/* The current call was made. If it gave its client memory, a handle to some, a channel or an address space, the client's
 * file is held. */
void held_files_after_call (struct tenant *tenant, const struct rm_call *call);
/* false: the current call may make what the guard could not stop, or follow, for want of room for one file more. */
bool held_files_have_room (const struct tenant *tenant, const struct rm_call *call);
/* The file of a client that is held; -1: none is. */
int held_file_of (const struct tenant *tenant, uint32_t client);
/* Holds it, which is the client's, and closes it in the end; at once if one is held already, or if there is no room. serial: of the process that
 * uses it. */
void held_file_add (struct tenant *tenant, uint32_t client, int file, uint64_t serial);
/* A client is gone: its file need not be held for it. */
void held_file_release (struct tenant *tenant, uint32_t client);
/* The process ended. What it had is duplicated, and its files are closed. */
void held_files_process_ended (struct tenant *tenant, uint64_t serial);
/* Its files are closed everywhere, and rm forgets it: what it had is probed for other holders. */
void held_files_process_released (struct tenant *tenant, uint64_t serial);
/* Closed by that thread: the driver may take long to give back what its clients have. */
void held_file_close (struct tenant *tenant, int file);
/* A thread that closes files: the driver takes long to give a process's context back. */
bool closer_start (struct guard *guard);
void closer_stop (struct guard *guard);
/* By it: a file that is not the tenant's, or not its burden (fair.c). */
void closer_add (const struct guard *guard, int file);
/* By it: the client is freed with all its objects, whichever process has its file, and the file is closed. */
void closer_free_client (const struct guard *guard, int file, uint32_t client);

#endif
