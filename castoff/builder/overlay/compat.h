// Included ahead of everything else (common.h), so that what a newer GCC and glibc make of it still
// runs where the stock wheel runs: manylinux_2_28 has GLIBC_2.28, GLIBCXX_3.4.24 and CXXABI_1.3.11.
//
// Here are the symbols that older systems have under an older version: the linker is told to use
// that one. What they do not have at all is in compat.cpp. `castoff verify` finds what is missing
// from these two files and names it.
#pragma once

#include <bits/c++config.h>

// condition_variable::wait_for then waits by the realtime clock, as it does on those systems.
#undef _GLIBCXX_USE_PTHREAD_COND_CLOCKWAIT

// NOLINTBEGIN: these are directives to the assembler.

// In libc.so.6 under a new version since glibc 2.34, in libpthread.so.0 and libdl.so.2 before that.
// Both are loaded wherever torch is, and the loader looks for name and version, not for the file.
__asm__(".symver dladdr,dladdr@GLIBC_2.2.5");
__asm__(".symver dlclose,dlclose@GLIBC_2.2.5");
__asm__(".symver dlerror,dlerror@GLIBC_2.2.5");
__asm__(".symver dlopen,dlopen@GLIBC_2.2.5");
__asm__(".symver dlsym,dlsym@GLIBC_2.2.5");
__asm__(".symver pthread_create,pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_getspecific,pthread_getspecific@GLIBC_2.2.5");
__asm__(".symver pthread_join,pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_key_create,pthread_key_create@GLIBC_2.2.5");
__asm__(".symver pthread_mutex_trylock,pthread_mutex_trylock@GLIBC_2.2.5");
__asm__(".symver pthread_once,pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_rdlock,pthread_rwlock_rdlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_unlock,pthread_rwlock_unlock@GLIBC_2.2.5");
__asm__(".symver pthread_rwlock_wrlock,pthread_rwlock_wrlock@GLIBC_2.2.5");
__asm__(".symver pthread_setspecific,pthread_setspecific@GLIBC_2.2.5");

// The new versions only leave out the error handling of SVID.
__asm__(".symver exp,exp@GLIBC_2.2.5");
__asm__(".symver exp2,exp2@GLIBC_2.2.5");
__asm__(".symver log,log@GLIBC_2.2.5");
__asm__(".symver log2,log2@GLIBC_2.2.5");
__asm__(".symver pow,pow@GLIBC_2.2.5");

// The new version only differs in being noexcept.
__asm__(
    ".symver _ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE,"
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");

// NOLINTEND
