/*
 * The exported dlsym and dlvsym. The dynamic linker identifies the caller by the return address (RTLD_NEXT,
 * RTLD_DEFAULT from a local scope, dlerror), so a lookup that is not answered here leaves by a jump with all registers
 * and the stack as on entry.
 *
 * Both have their first symbol version in glibc on this processor and the one since they are in libc.so (2.34). Runs in
 * every process that preloads one of the two libraries, on any thread.
 */
#if defined(__x86_64__)
__asm__ (".text\n"
         ".p2align 4\n"
         ".globl nvc_dlsym_stub\n.hidden nvc_dlsym_stub\n.type nvc_dlsym_stub,@function\n"
         "nvc_dlsym_stub:\n"
         ".cfi_startproc\n"
         "endbr64\n"
         "pushq %rdi\n.cfi_adjust_cfa_offset 8\n"
         "pushq %rsi\n.cfi_adjust_cfa_offset 8\n"
         "subq $8, %rsp\n.cfi_adjust_cfa_offset 8\n"
         "movq 24(%rsp), %rdx\n"
         "call api_dlsym\n"
         "addq $8, %rsp\n.cfi_adjust_cfa_offset -8\n"
         "popq %rsi\n.cfi_adjust_cfa_offset -8\n"
         "popq %rdi\n.cfi_adjust_cfa_offset -8\n"
         "testq %rax, %rax\n"
         "jnz 1f\n"
         "jmp *%rdx\n"
         "1: movq %rdx, %rax\n"
         "ret\n"
         ".cfi_endproc\n"
         ".size nvc_dlsym_stub, .-nvc_dlsym_stub\n"
         ".p2align 4\n"
         ".globl nvc_dlvsym_stub\n.hidden nvc_dlvsym_stub\n.type nvc_dlvsym_stub,@function\n"
         "nvc_dlvsym_stub:\n"
         ".cfi_startproc\n"
         "endbr64\n"
         "pushq %rdi\n.cfi_adjust_cfa_offset 8\n"
         "pushq %rsi\n.cfi_adjust_cfa_offset 8\n"
         "pushq %rdx\n.cfi_adjust_cfa_offset 8\n"
         "movq 24(%rsp), %rcx\n"
         "call api_dlvsym\n"
         "movq %rdx, %r11\n"
         "popq %rdx\n.cfi_adjust_cfa_offset -8\n"
         "popq %rsi\n.cfi_adjust_cfa_offset -8\n"
         "popq %rdi\n.cfi_adjust_cfa_offset -8\n"
         "testq %rax, %rax\n"
         "jnz 1f\n"
         "jmp *%r11\n"
         "1: movq %r11, %rax\n"
         "ret\n"
         ".cfi_endproc\n"
         ".size nvc_dlvsym_stub, .-nvc_dlvsym_stub\n");
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
__asm__ (".text\n"
         ".p2align 4\n"
         ".globl nvc_dlsym_stub\n.hidden nvc_dlsym_stub\n.type nvc_dlsym_stub,%function\n"
         "nvc_dlsym_stub:\n"
         ".cfi_startproc\n"
         "hint #34\n" /* bti c */
         "stp x29, x30, [sp, #-32]!\n.cfi_adjust_cfa_offset 32\n.cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n"
         "stp x0, x1, [sp, #16]\n"
         "mov x2, x30\n"
         "bl api_dlsym\n"
         "mov x16, x1\n"
         "mov x17, x0\n"
         "ldp x0, x1, [sp, #16]\n"
         "ldp x29, x30, [sp], #32\n.cfi_adjust_cfa_offset -32\n.cfi_restore x29\n.cfi_restore x30\n"
         "cbnz x17, 1f\n"
         "br x16\n"
         "1: mov x0, x16\n"
         "ret\n"
         ".cfi_endproc\n"
         ".size nvc_dlsym_stub, .-nvc_dlsym_stub\n"
         ".p2align 4\n"
         ".globl nvc_dlvsym_stub\n.hidden nvc_dlvsym_stub\n.type nvc_dlvsym_stub,%function\n"
         "nvc_dlvsym_stub:\n"
         ".cfi_startproc\n"
         "hint #34\n"
         "stp x29, x30, [sp, #-48]!\n.cfi_adjust_cfa_offset 48\n.cfi_rel_offset x29, 0\n.cfi_rel_offset x30, 8\n"
         "stp x0, x1, [sp, #16]\n"
         "str x2, [sp, #32]\n"
         "mov x3, x30\n"
         "bl api_dlvsym\n"
         "mov x16, x1\n"
         "mov x17, x0\n"
         "ldr x2, [sp, #32]\n"
         "ldp x0, x1, [sp, #16]\n"
         "ldp x29, x30, [sp], #48\n.cfi_adjust_cfa_offset -48\n.cfi_restore x29\n.cfi_restore x30\n"
         "cbnz x17, 1f\n"
         "br x16\n"
         "1: mov x0, x16\n"
         "ret\n"
         ".cfi_endproc\n"
         ".size nvc_dlvsym_stub, .-nvc_dlvsym_stub\n");
#define FIRST_VERSION "GLIBC_2.17"
#else
#error "libnvc-shim-api.so is for x86-64 and aarch64, where NVIDIA's driver is"
#endif

/* The linker needs a distinct name for every version. */
#define VERSIONED(symbol)                                                                                                          \
    __asm__ (".globl nvc_" symbol "_old\n.type nvc_" symbol "_old,%function\n"                                                     \
             ".set nvc_" symbol "_old, nvc_" symbol "_stub\n"                                                                      \
             ".globl nvc_" symbol "_new\n.type nvc_" symbol "_new,%function\n"                                                     \
             ".set nvc_" symbol "_new, nvc_" symbol "_stub\n"                                                                      \
             ".symver nvc_" symbol "_old, " symbol "@" FIRST_VERSION "\n"                                                          \
             ".symver nvc_" symbol "_new, " symbol "@@GLIBC_2.34\n")
VERSIONED ("dlsym");
VERSIONED ("dlvsym");
