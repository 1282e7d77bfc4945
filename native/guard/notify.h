/* Notifications. */
#ifndef NVC_GUARD_NOTIFY_H
#define NVC_GUARD_NOTIFY_H

#include <linux/audit.h>
#include <stdbool.h>

/* Of struct seccomp_data: calls by any other one, 32-bit ones too, are refused. */
#if defined(__x86_64__)
#define SECCOMP_ARCH_NATIVE AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define SECCOMP_ARCH_NATIVE AUDIT_ARCH_AARCH64
#else
#error "no architecture"
#endif

struct tenant;

/* Receives one notification from a listener and answers it. false: the listener is done. */
bool notify_handle (struct tenant *tenant, int listener);

#endif
