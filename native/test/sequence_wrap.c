/* What the guard's files ask the kernel (sequence_kernel.h), by --wrap of the linker. */
#include "sequence_kernel.h"

#include "guard/privsep.h"
#include "guard/process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

ssize_t __real_read (int file, void *to, size_t size);
ssize_t __real_write (int file, const void *from, size_t size);
ssize_t __wrap_read (int file, void *to, size_t size);
ssize_t __wrap_pread (int file, void *to, size_t size, off_t at);
ssize_t __wrap_pwrite (int file, const void *from, size_t size, off_t at);
ssize_t __wrap_write (int file, const void *from, size_t size);
int __wrap_fcntl (int file, int command, ...);
int __wrap_ioctl (int file, unsigned long request, ...);
long __wrap_syscall (long number, ...);
void *__real_mmap (void *at, size_t size, int rights, int flags, int file, off_t offset);
int __real_munmap (void *at, size_t size);
void *__wrap_mmap (void *at, size_t size, int rights, int flags, int file, off_t offset);
int __wrap_munmap (void *at, size_t size);
int __wrap_poll (struct pollfd *files, nfds_t count, int timeout);
int __wrap_clock_gettime (clockid_t clock, struct timespec *now);
int __wrap_nanosleep (const struct timespec *delay, struct timespec *rest);
ssize_t __wrap_getrandom (void *to, size_t size, unsigned flags);
int __wrap_epoll_ctl (int epoll, int operation, int file, struct epoll_event *event);
int __wrap_pipe2 (int *ends, int flags);
int __wrap_pthread_create (pthread_t *thread, const pthread_attr_t *attributes, void *(*run) (void *), void *argument);

static struct description *open_node (bool is_control)
{
    struct description *file = description_new (FILE_NODE);

    file->node = is_control ? MANAGER_CONTROL : MANAGER_GPU;
    file->tenant = (unsigned) (kernel.caller - GUARD_PID (0)) / 2;
    file->file = manager_open (kernel.manager, file->node, 0);
    return file;
}

/* A counter that an execve of the process switches on: events, and ns for which it is on. */
static ssize_t read_watch (const struct description *file, void *to)
{
    uint64_t values[2] = { 0, file->task->executed != file->at };

    memcpy (to, values, sizeof (values));
    return sizeof (values);
}

ssize_t __wrap_read (int descriptor, void *to, size_t size)
{
    struct description *file = descriptor_find (descriptor);

    if (file != NULL && file->what == FILE_WATCH)
        return read_watch (file, to);

    if (file == NULL)
        return descriptor < FIRST_DESCRIPTOR ? __real_read (descriptor, to, size) : (errno = EBADF, -1);
    if (size > file->size - file->at)
        size = file->size - file->at;
    memcpy (to, file->text + file->at, size);
    file->at += size;
    if (file->at == file->size && file->what == FILE_PIPE)
        file->at = file->size = 0;
    return (ssize_t) size;
}

ssize_t __wrap_write (int descriptor, const void *from, size_t size)
{
    struct description *file = descriptor_find (descriptor);

    if (descriptor == -1)
        return (ssize_t) size; /* an eventfd of the guard's, that no thread waits for */
    if (file == NULL)
        return __real_write (descriptor, from, size);
    if (file->size + size > sizeof (file->text))
        return errno = EAGAIN, -1;
    memcpy (file->text + file->size, from, size);
    file->size += size;
    return (ssize_t) size;
}

/* /proc/PID/mem: addresses are this process's. 0: no process uses the address space; EIO: nothing is mapped there. */
static ssize_t move (int descriptor, uint64_t address, void *to, const void *from, size_t size)
{
    const struct description *file = descriptor_find (descriptor);

    if (file == NULL || file->what != FILE_SPACE)
        return errno = EBADF, -1;
    if (file->space->users == 0)
        return 0;
    if (address < 4096 || address >= UINT64_C (1) << 47)
        return errno = EIO, -1;
    if (to != NULL)
        memcpy (to, (const void *) (uintptr_t) address, size);
    else if (from != NULL)
        memcpy ((void *) (uintptr_t) address, from, size);
    return (ssize_t) size;
}

ssize_t __wrap_pread (int descriptor, void *to, size_t size, off_t at)
{
    struct description *file = descriptor_find (descriptor);

    return file != NULL && file->what == FILE_TEXT ? kernel_read_maps (file, to, size, (size_t) at)
                                                   : move (descriptor, (uint64_t) at, to, NULL, size);
}

ssize_t __wrap_pwrite (int descriptor, const void *from, size_t size, off_t at)
{
    return move (descriptor, (uint64_t) at, NULL, from, size);
}

int __wrap_fcntl (int descriptor, int command, ...)
{
    struct description *file = descriptor_find (descriptor);

    if (file == NULL || command != F_DUPFD_CLOEXEC)
        return errno = EBADF, -1;
    return descriptor_new (description_hold (file));
}

int __wrap_ioctl (int descriptor, unsigned long request, ...)
{
    struct description *file = descriptor_find (descriptor);
    va_list arguments;
    void *argument;
    int result;

    va_start (arguments, request);
    argument = va_arg (arguments, void *);
    va_end (arguments);
    if (descriptor == LISTENER) {
        if (request == SECCOMP_IOCTL_NOTIF_RECV)
            memcpy (argument, kernel.notification, sizeof (*kernel.notification));
        else if (request == SECCOMP_IOCTL_NOTIF_SEND)
            memcpy (&kernel.response, argument, sizeof (kernel.response));
        return 0;
    }
    if (file == NULL || file->what != FILE_NODE)
        return errno = EBADF, -1;
    result = kernel_call (NULL, file, (uint32_t) request, argument);
    return result < 0 ? (errno = -result, -1) : result;
}

static long send_signal (int descriptor, int signal)
{
    struct description *file = descriptor_find (descriptor);
    struct task *task = file != NULL ? file->task : NULL;

    if (task == NULL || task_find (task->pid) != task)
        return errno = ESRCH, -1;
    task->is_killed |= signal == SIGKILL;
    return 0;
}

long __wrap_syscall (long number, ...)
{
    long first, second;
    va_list arguments;

    va_start (arguments, number);
    first = va_arg (arguments, long);
    second = va_arg (arguments, long);
    va_end (arguments);
    switch (number) {
    case SYS_pidfd_send_signal:
        return send_signal ((int) first, (int) second);
    case SYS_tgkill:
        return task_find ((pid_t) first) != NULL && task_find ((pid_t) second) == task_find ((pid_t) first) ? 0
                                                                                                            : (errno = ESRCH, -1);
    default:
        return errno = ENOSYS, -1;
    }
}

static char watch_page;

void *__wrap_mmap (void *at, size_t size, int rights, int flags, int file, off_t offset)
{
    return file >= FIRST_DESCRIPTOR ? &watch_page : __real_mmap (at, size, rights, flags, file, offset);
}

int __wrap_munmap (void *at, size_t size) { return at == &watch_page ? 0 : __real_munmap (at, size); }

int __wrap_poll (struct pollfd *files, nfds_t count, int timeout)
{
    const struct description *file = descriptor_find (files[0].fd);

    (void) count;
    (void) timeout;
    files[0].revents = file != NULL && file->what == FILE_WATCH && !file->task->is_alive ? POLLHUP : 0;
    return files[0].revents != 0;
}

int __wrap_clock_gettime (clockid_t clock, struct timespec *now)
{
    (void) clock;
    *now = (struct timespec) { .tv_sec = (time_t) (kernel.now / 1000000000u), .tv_nsec = (long) (kernel.now % 1000000000u) };
    return 0;
}

int __wrap_nanosleep (const struct timespec *delay, struct timespec *rest)
{
    (void) rest;
    kernel.now += (uint64_t) delay->tv_sec * 1000000000u + (uint64_t) delay->tv_nsec;
    return 0;
}

ssize_t __wrap_getrandom (void *to, size_t size, unsigned flags)
{
    (void) flags;
    kernel.random = kernel.random * 6364136223846793005u + 1442695040888963407u;
    memcpy (to, &kernel.random, size < sizeof (kernel.random) ? size : sizeof (kernel.random));
    return (ssize_t) size;
}

int __wrap_epoll_ctl (int epoll, int operation, int file, struct epoll_event *event)
{
    (void) epoll;
    (void) operation;
    (void) file;
    (void) event;
    return 0; /* the world tells of ends itself */
}

int __wrap_pipe2 (int *ends, int flags)
{
    struct description *file = description_new (FILE_PIPE);

    (void) flags;
    ends[0] = descriptor_new (file);
    ends[1] = descriptor_new (description_hold (file));
    return 0;
}

int __wrap_pthread_create (pthread_t *thread, const pthread_attr_t *attributes, void *(*run) (void *), void *argument)
{
    (void) thread;
    (void) attributes;
    kernel.closer = run;
    kernel.closer_argument = argument;
    return 0;
}

/* In place of guard/privsep.c, and of the monitor: what a descriptor is cannot change between two looks here. */

void privsep_begin (struct privsep *self, int socket) { self->socket = socket; }

void privsep_end (struct privsep *self) { (void) self; }

static int open_space (const struct task *task)
{
    struct description *file = description_new (FILE_SPACE);

    file->space = task->space;
    file->space->references++;
    return descriptor_new (file);
}

static int open_task (struct task *task, int what)
{
    struct description *file = description_new (what);

    file->task = task;
    file->at = task->executed;
    return descriptor_new (file);
}

/* NULL: it has ended. */
static struct task *task_of (const struct process *process)
{
    struct task *task = task_find (process->pid);

    return task != NULL && (uint64_t) task->pid == process->start_time ? task : NULL;
}

int privsep_process (struct privsep *self, pid_t thread, struct privsep_process *found)
{
    struct task *task = task_find (thread);

    (void) self;
    if (task == NULL)
        return -ESRCH;
    *found = (struct privsep_process) { .pid = task->pid,
                                        .start_time = (uint64_t) task->pid,
                                        .levels = 1,
                                        .numbers = { (uint32_t) task->pid },
                                        .pidfd = open_task (task, FILE_PIDFD),
                                        .memory = open_space (task) };
    return 0;
}

/* The mount by which a file was opened is its tenant's. */
int privsep_file (struct privsep *self, const struct process *process, int number, bool is_named, enum rm_node *node)
{
    struct task *task = task_of (process);
    struct description *file = task != NULL && number >= 0 && number < (int) TASK_FILES ? task->files[number] : NULL;

    (void) self;
    *node = RM_NODE_OTHER;
    if (task == NULL)
        return -ESRCH;
    if (file == NULL)
        return -EBADF;
    if (!is_named && file->tenant != task->tenant)
        return -EXDEV;
    *node = file->node == MANAGER_CONTROL ? RM_NODE_CONTROL : file->node == MANAGER_GPU ? RM_NODE_GPU : RM_NODE_UVM;
    return descriptor_new (description_hold (file));
}

int privsep_files (struct privsep *self, const struct process *process, int32_t *numbers)
{
    const struct task *task = task_of (process);
    int count = 0;

    (void) self;
    for (int i = 0; task != NULL && i < (int) TASK_FILES; i++)
        if (task->files[i] != NULL && task->files[i]->what == FILE_NODE && task->files[i]->node == MANAGER_CONTROL)
            numbers[count++] = i;
    return task == NULL ? -ESRCH : count;
}

int privsep_maps (struct privsep *self, const struct process *process)
{
    const struct task *task = task_of (process);
    struct description *file;

    (void) self;
    if (task == NULL)
        return -ESRCH;
    file = description_new (FILE_TEXT);
    file->space = task->space;
    file->space->references++;
    return descriptor_new (file);
}

int privsep_syscall (struct privsep *self, const struct process *process, pid_t thread, enum privsep_thread_state *state,
                     uint64_t arguments[4])
{
    const uint64_t *call = thread >= FIRST_THREAD ? kernel.thread_calls[thread - FIRST_THREAD] : NULL;

    (void) self;
    *state = task_of (process) != NULL && task_find (thread) == task_of (process) ? THREAD_WAITING : THREAD_ENDED;
    memset (arguments, 0, 4 * sizeof (arguments[0]));
    if (call != NULL && call[1] != 0) {
        arguments[0] = SYS_ioctl;
        memcpy (arguments + 1, call, 3 * sizeof (arguments[0]));
    }
    return 0;
}

int privsep_space (struct privsep *self, const struct process *process, pid_t thread, int files[2])
{
    struct task *task = process != NULL ? task_of (process) : NULL;

    (void) self;
    if (task == NULL || task_find (thread) != task)
        return -ESRCH;
    files[0] = open_task (task, FILE_WATCH);
    files[1] = open_space (task);
    return 0;
}

int privsep_kill (struct privsep *self, const struct process *process)
{
    struct task *task = task_of (process);

    (void) self;
    if (task == NULL)
        return -ESRCH;
    task->is_killed = true;
    return 0;
}

int privsep_device (struct privsep *self, int number)
{
    (void) self;
    return number == 0 || number == 1 ? descriptor_new (open_node (number == 0)) : -ENODEV;
}
