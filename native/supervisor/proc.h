/* Processes: what the monitor reads of them in /proc (proc(5)), and one that is no child. Pids are the host's. */
#ifndef NVC_SUPERVISOR_PROC_H
#define NVC_SUPERVISOR_PROC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* The first bytes of a file of /proc or of a cgroup, with a NUL. false: it cannot be read. */
bool proc_text (const char *path, char *text, size_t size);
/* The value of a line of /proc/PID/status, as "Tgid", which a thread has too. false: there is no such process, or no such line. */
bool proc_status (pid_t pid, const char *name, char *value, size_t size);
/* The same of a value that is a number; 0: there is none. */
long proc_status_number (pid_t pid, const char *name);
/* Field 22 of /proc/PID/stat; 0: there is no such process. */
uint64_t proc_start_time (pid_t pid);
/* Whether the process is ending: each of its threads exits, writes the core dump, or has SIGKILL pending, and executes no code any more. Not where only
 * the first thread has exited, nor where one thread calls execve, for which the others get SIGKILL. */
bool proc_is_ending (pid_t pid);
/* The OOM killer takes this process, and those that it makes from now on, last (oom_score_adj -999; takes CAP_SYS_RESOURCE). */
void proc_keep_from_oom_killer (void);
/* A process in a session of its own that is no child of this one. 0: in it; 1: in this one; -1: it cannot be made. */
int proc_fork_apart (void);

#endif
