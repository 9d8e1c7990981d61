// What the code that a newer GCC makes calls, and the oldest system of the wheel's platform tag
// does not have: local definitions, hidden, so that nothing outside the overlay can find them.
#include <new>
#include <sstream>

#define CASTOFF_HIDDEN __attribute__((visibility("hidden")))

// glibc 2.32 lets shared_ptr skip atomic instructions while there is one thread. Not knowing is
// safe.
extern "C" {
CASTOFF_HIDDEN char __libc_single_threaded = 0;
}

// libstdc++ of GCC 11: thrown by `new T[n]` when n * sizeof(T) does not fit. Its class derives from
// bad_alloc, which is what older compilers threw here.
extern "C" {
[[noreturn]] CASTOFF_HIDDEN void castoff_throw_bad_array_new_length() __asm__(
    "_ZSt28__throw_bad_array_new_lengthv");
}

void castoff_throw_bad_array_new_length() {
  throw std::bad_alloc();
}

// libstdc++ of GCC 11 counts the references of an exception_ptr in inline code, by two functions
// that were private to it before. The copy constructor and the destructor, which have always been
// exported, do the same: an exception_ptr is nothing but its one pointer.
extern "C" {
void castoff_exception_ptr_copy(void* self, const void* other);
void castoff_exception_ptr_destroy(void* self);
CASTOFF_HIDDEN void castoff_exception_ptr_addref(void* self) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr9_M_addrefEv");
CASTOFF_HIDDEN void castoff_exception_ptr_release(void* self) __asm__(
    "_ZNSt15__exception_ptr13exception_ptr10_M_releaseEv");
}

__asm__(
    ".symver castoff_exception_ptr_copy,"
    "_ZNSt15__exception_ptr13exception_ptrC1ERKS0_@CXXABI_1.3.3");
__asm__(
    ".symver castoff_exception_ptr_destroy,"
    "_ZNSt15__exception_ptr13exception_ptrD1Ev@CXXABI_1.3.3");

// The copy is never destroyed: its reference is the one to be added.
void castoff_exception_ptr_addref(void* self) {
  void* copy = nullptr;
  castoff_exception_ptr_copy(&copy, self);
}

void castoff_exception_ptr_release(void* self) {
  castoff_exception_ptr_destroy(self);
}

// libstdc++ of GCC 9 exports the default constructors of the string streams, which were inline
// before. What they do is to call the constructor that takes the mode.
#if _GLIBCXX_USE_CXX11_ABI
#define CASTOFF_STRING_STREAM "_ZNSt7__cxx11"
#else
#define CASTOFF_STRING_STREAM "_ZNSt"
#endif

extern "C" {
CASTOFF_HIDDEN void castoff_istringstream_construct(void* self) __asm__(
    CASTOFF_STRING_STREAM "19basic_istringstreamIcSt11char_traitsIcESaIcEEC1Ev");
CASTOFF_HIDDEN void castoff_ostringstream_construct(void* self) __asm__(
    CASTOFF_STRING_STREAM "19basic_ostringstreamIcSt11char_traitsIcESaIcEEC1Ev");
CASTOFF_HIDDEN void castoff_stringstream_construct(void* self) __asm__(
    CASTOFF_STRING_STREAM "18basic_stringstreamIcSt11char_traitsIcESaIcEEC1Ev");
}

void castoff_istringstream_construct(void* self) {
  new (self) std::istringstream(std::ios::in);
}

void castoff_ostringstream_construct(void* self) {
  new (self) std::ostringstream(std::ios::out);
}

void castoff_stringstream_construct(void* self) {
  new (self) std::stringstream(std::ios::in | std::ios::out);
}
