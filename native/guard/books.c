/*
 * A tenant's books in a mapped file, so that they outlive this process: rm's records (host->keep), the processes that
 * they belong to, and the call in hand. Kill this process between any two stores: who takes over believes only what was
 * entered (native/rm/restore.c), and finishes or undoes the call in hand (resume.c).
 */
#include "books.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/seccomp.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BOOKS_MAGIC 0x736b6f6f6272766eu
#define RECORDS_AT ((sizeof (struct books) + 4095) & ~(size_t) 4095)
/* As many records as rm keeps; the file is sparse. */
#define RECORDS_MOST ((size_t) 384 << 20)
#define IN_ORDER() __asm__ volatile ("" ::: "memory")

/* Room is taken before it is written: a full /run would be told by SIGBUS.
 * Without it the books are not to be believed. */
static bool take_room (struct tenant *tenant, size_t at, size_t size)
{
    if (posix_fallocate (tenant->books_file, (off_t) at, (off_t) size) == 0)
        return true;
    tenant->books->is_incomplete = true;
    return false;
}

int books_open (struct tenant *tenant, int file)
{
    struct books *books;
    int error, own;

    if (ftruncate (file, (off_t) (RECORDS_AT + RECORDS_MOST)) != 0)
        return -errno;
    error = posix_fallocate (file, 0, offsetof (struct books, processes));
    if (error != 0)
        return -error;
    own = fcntl (file, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return -errno;
    books = mmap (NULL, RECORDS_AT + RECORDS_MOST, PROT_READ | PROT_WRITE, MAP_SHARED, own, 0);
    if (books == MAP_FAILED) {
        error = errno;
        close (own);
        return -error;
    }
    books->layout = rm_layout () ^ sizeof (struct books);
    books->address = (uint64_t) (uintptr_t) books + RECORDS_AT;
    IN_ORDER ();
    books->magic = BOOKS_MAGIC;
    tenant->books = books;
    tenant->books_file = own;
    return 0;
}

void books_close (struct tenant *tenant)
{
    if (tenant->books == NULL)
        return;
    munmap (tenant->books, RECORDS_AT + RECORDS_MOST);
    close (tenant->books_file);
    tenant->books = NULL;
}

void *books_keep (struct tenant *tenant, size_t size)
{
    struct books *books = tenant->books;
    size_t at;

    if (books == NULL)
        return NULL;
    at = (size_t) books->used;
    size = (size + 15) & ~(size_t) 15;
    if (size > RECORDS_MOST - at) {
        books->is_incomplete = true;
        return NULL;
    }
    if (!take_room (tenant, RECORDS_AT + at, size))
        return NULL;
    books->used = at + size;
    return (uint8_t *) books + RECORDS_AT + at;
}

bool books_has (const struct tenant *tenant, const void *memory)
{
    const uint8_t *begin = (const uint8_t *) tenant->books;

    return begin != NULL && (const uint8_t *) memory >= begin && (const uint8_t *) memory < begin + RECORDS_AT + RECORDS_MOST;
}

void books_process (struct tenant *tenant, const struct process *process)
{
    size_t place = (size_t) (process - tenant->processes);
    struct kept_process *kept;

    if (tenant->books == NULL)
        return;
    kept = &tenant->books->processes[place];
    if (!tenant->has_room[place] &&
        !(tenant->has_room[place] = take_room (tenant, offsetof (struct books, processes) + place * sizeof (*kept),
                                               sizeof (*kept))))
        return;
    if (kept->serial != process->serial)
        kept->serial = 0;
    IN_ORDER ();
    kept->start_time = process->start_time;
    kept->pid = process->pid;
    memcpy (kept->clients, process->clients, sizeof (kept->clients));
    kept->client_count = process->client_count;
    IN_ORDER ();
    kept->serial = process->serial;
}

void books_enter (struct tenant *tenant, const struct kept_call *call)
{
    tenant->books->call = *call;
    tenant->books->call.phase = PHASE_NONE;
    IN_ORDER ();
    tenant->books->call.phase = call->phase;
}

void books_received (struct tenant *tenant, const struct seccomp_notif *notification)
{
    struct kept_call *call;

    if (tenant->books == NULL)
        return;
    call = &tenant->books->call;
    call->id = notification->id;
    call->thread = (int32_t) notification->pid;
    memcpy (call->arguments, notification->data.args, sizeof (call->arguments));
    IN_ORDER ();
    call->phase = PHASE_RECEIVED;
}

void books_performing (struct tenant *tenant, uint64_t serial, const struct rm_call *made)
{
    struct kept_call *call;
    uint32_t client, handle;

    if (tenant->books == NULL || made->head_size > sizeof (call->head))
        return;
    call = &tenant->books->call;
    memcpy (call->head, made->head, made->head_size);
    call->head_size = made->head_size;
    repeat_note (call, made);
    call->serial = serial;
    call_names (call, &client, &handle);
    call->was_there = rm_has_object (tenant->rm, client, handle);
    IN_ORDER ();
    call->phase = PHASE_PERFORMING;
}

void books_performed (struct tenant *tenant, uint32_t head_size)
{
    if (tenant->books == NULL || head_size > sizeof (tenant->books->call.head))
        return;
    memcpy (tenant->books->call.head, tenant->head, head_size);
    IN_ORDER ();
    tenant->books->call.phase = PHASE_PERFORMED;
}

void books_answering (struct tenant *tenant, bool is_over)
{
    struct kept_call *call = tenant->books != NULL ? &tenant->books->call : NULL;

    IN_ORDER ();
    if (call != NULL && is_over)
        call->phase = PHASE_NONE;
    /* What was refused, or left to its thread, is made again; the head that is kept is an earlier call's. */
    else if (call != NULL && call->phase >= PHASE_PERFORMING)
        call->phase = PHASE_ANSWERED;
    IN_ORDER ();
}

/* The other guard's processes get their places and serial numbers back: rm's files are named after them. */
static void restore_processes (struct tenant *tenant, const struct books *before)
{
    for (unsigned i = 0; i < TENANT_PROCESSES; i++) {
        const struct kept_process *kept = &before->processes[i];

        if (kept->serial == 0 || kept->serial % TENANT_PROCESSES != i || kept->client_count > PROCESS_CLIENTS)
            continue;
        process_restore (tenant, kept->serial, kept->pid, kept->start_time);
        memcpy (tenant->processes[i].clients, kept->clients, sizeof (kept->clients));
        tenant->processes[i].client_count = kept->client_count;
        books_process (tenant, &tenant->processes[i]);
        if (tenant->next_serial < kept->serial / TENANT_PROCESSES)
            tenant->next_serial = kept->serial / TENANT_PROCESSES;
    }
}

/* Not by mapping the file: to look at a hole of it takes room, which a full /run has not, and the answer would be SIGBUS. */
static bool read_all (int file, void *to, size_t size, size_t at)
{
    while (size > 0) {
        ssize_t done = pread (file, to, size, (off_t) at);

        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        to = (uint8_t *) to + done;
        at += (size_t) done;
        size -= (size_t) done;
    }
    return true;
}

/* A private copy of the other guard's books, which is written to; NULL: with errno. */
static struct books *read_books (int file, size_t size)
{
    struct books *before = mmap (NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (before == MAP_FAILED)
        return NULL;
    errno = EINVAL;
    if (read_all (file, before, RECORDS_AT, 0) && before->used <= (uint64_t) size - RECORDS_AT &&
        read_all (file, (uint8_t *) before + RECORDS_AT, (size_t) before->used, RECORDS_AT))
        return before;
    munmap (before, size);
    return NULL;
}

int books_restore (struct tenant *tenant, int file, struct kept_call *call)
{
    struct stat status;
    struct books *before;
    int result = -EINVAL;

    if (fstat (file, &status) != 0)
        return -errno;
    if (status.st_size < (off_t) RECORDS_AT)
        return -EINVAL;
    before = read_books (file, (size_t) status.st_size);
    if (before == NULL)
        return -errno;
    if (before->magic == BOOKS_MAGIC && before->layout == (rm_layout () ^ sizeof (struct books)) && !before->is_incomplete) {
        restore_processes (tenant, before);
        repeat_restore (tenant, before);
        *call = before->call;
        result = rm_restore (tenant->rm, (uint8_t *) before + RECORDS_AT, (size_t) before->used, before->address) ? 0
                                                                                                                 : -ENOMEM;
    }
    munmap (before, (size_t) status.st_size);
    return result;
}
