/*
 * The threads of nvc-sim-manager (leader/follower). The leader reads requests and replies to all but ioctls at once, in
 * order, so that a request after a close finds it done. Before it serves an ioctl it gives up the lead, since the ioctl
 * may wait, or access the caller's memory: that may be a mapping of these files, and then another thread must serve the
 * page fault.
 */
#include "fuse.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define STACK (256 * 1024)

void server_reply (struct server *server, uint64_t unique, int error, const void *data, size_t size)
{
    struct fuse_out_header header = { .len = (uint32_t) (sizeof (header) + size), .error = error, .unique = unique };
    struct iovec parts[2] = { { .iov_base = &header, .iov_len = sizeof (header) },
                              { .iov_base = (void *) (uintptr_t) data, .iov_len = size } };

    /* ENOENT: the caller has ended meanwhile; ENODEV: unmounted. Both need no further action. */
    while (writev (server->device, parts, size > 0 ? 2 : 1) < 0 && errno == EINTR) {}
}

static void reply_ioctl (struct server *server, uint64_t unique, int result)
{
    struct fuse_ioctl_out out = { .result = result };

    server_reply (server, unique, 0, &out, sizeof (out));
}

static void which_file (struct server *server, uint64_t unique, const struct fuse_ioctl_in *in)
{
    const struct server_question *question = (const void *) (in + 1);
    struct {
        struct fuse_ioctl_out out;
        struct server_question answer;
    } reply = { .out = { .result = 0 } };

    if (in->in_size != sizeof (*question) || question->secret != server->secret) {
        reply_ioctl (server, unique, -ENOTTY);
        return;
    }
    reply.answer.file = in->fh;
    server_reply (server, unique, 0, &reply, sizeof (reply));
}

static void interrupt (struct server *server, uint64_t unique)
{
    pthread_mutex_lock (&server->jobs_lock);
    for (struct job *job = server->jobs; job != NULL; job = job->next) {
        if (job->unique == unique)
            manager_interrupt (server->manager, &job->caller);
    }
    pthread_mutex_unlock (&server->jobs_lock);
}

static void *serve (void *argument);

/* Starts a thread unless one waits for the lead. */
static void ensure_follower (struct server *server)
{
    pthread_attr_t attributes;
    pthread_t thread;
    bool needed;

    pthread_mutex_lock (&server->jobs_lock);
    needed = server->idle == 0 && server->threads < SERVER_MAX_THREADS;
    if (needed) {
        server->threads++;
        server->idle++;
    }
    pthread_mutex_unlock (&server->jobs_lock);
    if (!needed)
        return;
    pthread_attr_init (&attributes);
    pthread_attr_setstacksize (&attributes, STACK);
    pthread_attr_setdetachstate (&attributes, PTHREAD_CREATE_DETACHED);
    if (pthread_create (&thread, &attributes, serve, server) != 0) {
        pthread_mutex_lock (&server->jobs_lock);
        server->threads--;
        server->idle--;
        pthread_mutex_unlock (&server->jobs_lock);
    }
    pthread_attr_destroy (&attributes);
}

/* Reads and replies until there is an ioctl to serve. False: the connection has ended. */
static bool lead (struct server *server, char *buffer, struct fuse_in_header *header, struct fuse_ioctl_in *in)
{
    for (;;) {
        ssize_t size = read (server->device, buffer, SERVER_BUFFER);
        const void *body = buffer + sizeof (*header);

        if (size < 0 && (errno == EINTR || errno == EAGAIN || errno == ENOENT))
            continue;
        if (size < (ssize_t) sizeof (*header))
            return false;
        memcpy (header, buffer, sizeof (*header));
        if (header->opcode == FUSE_INTERRUPT) {
            interrupt (server, ((const struct fuse_interrupt_in *) body)->unique);
        } else if (header->opcode == FUSE_IOCTL) {
            memcpy (in, body, sizeof (*in));
            if (in->flags & FUSE_IOCTL_DIR)
                reply_ioctl (server, header->unique, -ENOTTY);
            else if (in->cmd == SERVER_WHICH_FILE)
                which_file (server, header->unique, body);
            else
                return true;
        } else {
            server_file_request (server, header, body);
        }
    }
}

static void end (struct server *server)
{
    pthread_mutex_lock (&server->jobs_lock);
    server->ended = true;
    pthread_cond_broadcast (&server->started);
    pthread_mutex_unlock (&server->jobs_lock);
}

static void *serve (void *argument)
{
    struct server *server = argument;
    char *buffer = malloc (SERVER_BUFFER);
    struct fuse_in_header header;
    struct fuse_ioctl_in in;

    while (buffer != NULL) {
        struct caller caller;
        struct job job = { .next = NULL };
        pthread_mutex_lock (&server->leader);
        pthread_mutex_lock (&server->jobs_lock);
        server->idle--;
        pthread_mutex_unlock (&server->jobs_lock);
        if (!lead (server, buffer, &header, &in)) {
            end (server);
            pthread_mutex_unlock (&server->leader);
            break;
        }
        job.unique = header.unique;
        caller_begin (&caller, &job.caller, server, (pid_t) header.pid);
        pthread_mutex_lock (&server->jobs_lock);
        job.next = server->jobs;
        server->jobs = &job;
        pthread_mutex_unlock (&server->jobs_lock);
        ensure_follower (server);
        pthread_mutex_unlock (&server->leader);
        int result = manager_ioctl ((struct manager_file *) (uintptr_t) in.fh, &job.caller, in.cmd, in.arg);
        if (manager_has_news (server->manager))
            server_refresh (server);
        pthread_mutex_lock (&server->jobs_lock);
        struct job **place = &server->jobs;
        while (*place != &job)
            place = &(*place)->next;
        *place = job.next;
        pthread_mutex_unlock (&server->jobs_lock);
        /* Before this thread counts as a follower: the close of a file of this mount may wait for the leader. */
        caller_end (&caller);
        pthread_mutex_lock (&server->jobs_lock);
        server->idle++;
        pthread_mutex_unlock (&server->jobs_lock);
        reply_ioctl (server, header.unique, result);
    }
    free (buffer);
    return NULL;
}

bool server_start (struct server *server)
{
    ensure_follower (server);
    return server->threads > 0;
}
