/* Notifications. */
#ifndef NVC_GUARD_NOTIFY_H
#define NVC_GUARD_NOTIFY_H

#include <linux/audit.h>
#include <stdbool.h>
#include <stdint.h>

/* Of struct seccomp_data: calls by any other one, 32-bit ones too, are refused. */
#if defined(__x86_64__)
#define SECCOMP_ARCH_NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define SECCOMP_ARCH_NATIVE AUDIT_ARCH_AARCH64
#else
#error "no architecture"
#endif

struct seccomp_notif;
struct tenant;

/* The current call's notification. */
struct notified {
    int listener;
    uint64_t id;
    bool
        is_unchecked; /* something of the call was found by a number, a thread's or a descriptor's, since its thread was seen to wait */
    bool is_over; /* its thread does not wait any more: nothing of its process is touched for it */
};

/* What was just looked up by a number may be another's: a number can be given anew once the caller has ended. */
void notify_found_by_number (struct tenant *tenant);
/* Whether what the call was found by is the caller's, because its thread waits still. Asks the kernel only after
 * notify_found_by_number. */
bool notify_is_waiting (struct tenant *tenant);

/* Waits for a notification of the listener. 0 or errno. */
int notify_receive (int listener, struct seccomp_notif *notification);
/* Whether the error of notify_receive is not the listener's. */
bool notify_is_passing (int error);
/* Decides what becomes of the call, and answers it. When it was answered (CLOCK_MONOTONIC ns). */
uint64_t notify_answer (struct tenant *tenant, int listener, const struct seccomp_notif *notification);
/* Both. false: the listener is done. */
bool notify_handle (struct tenant *tenant, int listener);

#endif
