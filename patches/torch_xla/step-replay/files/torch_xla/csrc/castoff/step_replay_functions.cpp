// Functions of the loaded _XLAC.so that it has for itself, by the symbol table of its file.

#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "torch_xla/csrc/castoff/lazy_ir.h"
#include "torch_xla/csrc/castoff/step_replay.h"

namespace castoff::step_replay {
namespace {

struct Loaded {
  std::string path;
  uintptr_t base = 0;
};

int find_loaded(dl_phdr_info* info, size_t, void* result) {
  const std::string_view path = info->dlpi_name == nullptr ? "" : info->dlpi_name;
  if (path.substr(path.rfind('/') + 1).substr(0, 6) != "_XLAC.") return 0;
  *static_cast<Loaded*>(result) = {std::string(path), info->dlpi_addr};
  return 1;
}

// A file in memory. What it does not have is nullptr.
class File {
 public:
  explicit File(const char* path) {
    const int file = ::open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return;
    const off_t size = ::lseek(file, 0, SEEK_END);
    if (size > 0) {
      void* begin = ::mmap(nullptr, static_cast<size_t>(size), PROT_READ, MAP_PRIVATE, file, 0);
      if (begin != MAP_FAILED) {
        begin_ = static_cast<const char*>(begin);
        size_ = static_cast<size_t>(size);
      }
    }
    ::close(file);
  }
  ~File() {
    if (begin_ != nullptr) ::munmap(const_cast<char*>(begin_), size_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;

  template <class T>
  const T* at(size_t offset, size_t count = 1) const {
    const bool has = offset <= size_ && count <= (size_ - offset) / sizeof(T);
    return has ? reinterpret_cast<const T*>(begin_ + offset) : nullptr;
  }

 private:
  const char* begin_ = nullptr;
  size_t size_ = 0;
};

// Where the functions of these names are in a file, as far as it says.
void find_in_table(const File& file, const ElfW(Shdr) & table, const ElfW(Shdr) & names,
                   Function* functions, size_t count, uintptr_t base) {
  const size_t symbols = table.sh_size / sizeof(ElfW(Sym));
  const auto* symbol = file.at<ElfW(Sym)>(table.sh_offset, symbols);
  const auto* text = file.at<char>(names.sh_offset, names.sh_size);
  if (symbol == nullptr || text == nullptr || names.sh_size == 0) return;
  if (text[names.sh_size - 1] != '\0') return;
  for (size_t i = 0; i < symbols; ++i) {
    if ((symbol[i].st_info & 0xf) != STT_FUNC || symbol[i].st_name >= names.sh_size) continue;
    for (Function* function = functions; function != functions + count; ++function) {
      if (std::strcmp(text + symbol[i].st_name, function->name) == 0) {
        function->address = reinterpret_cast<void*>(base + symbol[i].st_value);
      }
    }
  }
}

}  // namespace

bool find_functions(Function* functions, size_t count) {
  Loaded loaded;
  if (lazy_ir::refusal() || dl_iterate_phdr(find_loaded, &loaded) == 0) return false;
  const File file(loaded.path.c_str());
  const auto* header = file.at<ElfW(Ehdr)>(0);
  if (header == nullptr) return false;
  const auto* sections = file.at<ElfW(Shdr)>(header->e_shoff, header->e_shnum);
  for (size_t i = 0; sections != nullptr && i < header->e_shnum; ++i) {
    if (sections[i].sh_type != SHT_SYMTAB || sections[i].sh_link >= header->e_shnum) continue;
    find_in_table(file, sections[i], sections[sections[i].sh_link], functions, count, loaded.base);
  }
  for (size_t i = 0; i < count; ++i) {
    if (functions[i].address == nullptr) return false;
  }
  return true;
}

}  // namespace castoff::step_replay
