/*
 * Serves a manager's nodes as files, by the FUSE protocol on /dev/fuse (no library): a flat directory with nvidiactl,
 * nvidia<N>, nvidia-uvm and nvidia-uvm-tools. So simulated containers have real descriptors, real ioctl system calls,
 * RELEASE at the last close in any process, and shared mappings. Shared by the fuse_*.c; lines below name the file.
 *
 * The kernel copies an ioctl's own struct by the size and direction bits of its number, and none at all for UVM's plain
 * numbers. The server replies without data and accesses the caller's memory itself, by the request's thread id: so type
 * byte and direction have no effect, as with the real driver.
 */
#ifndef NVC_SIM_FUSE_H
#define NVC_SIM_FUSE_H

#include "manager.h"

#include <linux/fuse.h>
#include <pthread.h>
#include <sys/types.h>

#define SERVER_MAX_NODES (MANAGER_MAX_GPUS + 3)
#define SERVER_BUFFER (256 * 1024)
#define SERVER_MAX_THREADS 512
#define ROOT_INODE UINT64_C (1)
/* The largest size of a file: managed memory is mapped at an offset that equals its address. */
#define NODE_SIZE (UINT64_C (1) << 62)

struct node {
    char name[24];
    enum manager_node kind;
    uint32_t gpu; /* of the manager */
};

/* An ioctl in progress. */
struct job {
    struct job *next;
    uint64_t unique;
    struct manager_caller caller;
};

struct server {
    int device; /* /dev/fuse */
    char *mountpoint;
    struct manager *manager;
    const struct machine *machine;
    struct node nodes[SERVER_MAX_NODES];
    uint32_t node_count;
    dev_t filesystem;
    uint64_t secret;        /* known to this process: see caller_file */
    pthread_mutex_t leader; /* held by the thread that reads the device (fuse_server.c) */
    pthread_mutex_t jobs_lock;
    pthread_cond_t started; /* FUSE_INIT was received, or the connection has ended */
    struct job *jobs;
    uint32_t threads, idle;
    bool greeted, ended;
};

/* The server's ioctl on a duplicated descriptor of a caller, which identifies the open file. */
struct server_question {
    uint64_t secret;
    uint64_t file;
};
#define SERVER_WHICH_FILE _IOWR ('S', 0xef, struct server_question)

/* fuse_mount.c: 0 or -errno with a line on standard error. */
int server_mount (struct server *server);
void server_unmount (struct server *server);

/* fuse_server.c. Starts the first thread; false: no thread. */
bool server_start (struct server *server);
void server_reply (struct server *server, uint64_t unique, int error, const void *data, size_t size);
/* fuse_files.c: all requests but ioctls. */
void server_file_request (struct server *server, const struct fuse_in_header *header, const void *body);
/* Pages of the control node that are mapped are read again. Not by the leading thread, which serves that. */
void server_refresh (struct server *server);

/* fuse_caller.c */
struct caller {
    struct server *server;
    pid_t thread;
    int held; /* a duplicate of the caller's descriptor, for the duration of the call; -1 */
    unsigned depth; /* of its pid namespace, from the server's on, which is 1; 0: not asked yet */
};
void caller_begin (struct caller *caller, struct manager_caller *functions, struct server *server, pid_t thread);
void caller_end (struct caller *caller);

#endif
