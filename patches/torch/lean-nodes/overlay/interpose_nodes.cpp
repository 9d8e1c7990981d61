// An overlay build takes the place of what torch_xla calls most while it makes nodes: the hash of
// a few bytes and of two hashes, whose results stay torch's, and the scope of an operator, which
// only debugging reads.
#include <torch/csrc/castoff/kill_switch.h>
#include <torch/csrc/lazy/core/config.h>
#include <torch/csrc/lazy/core/hash.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "interpose.h"

#define HASH_BLOCK "_ZN5torch4lazy9HashBlockEPKvmRKNS0_6hash_tE"
#define HASH_COMBINE "_ZN5torch4lazy11HashCombineERKNS0_6hash_tES3_"
#if _GLIBCXX_USE_CXX11_ABI
#define SCOPE                                                          \
  "_ZN5torch4lazy11ScopePusherC1ERKNSt7__cxx1112basic_stringIcSt11cha" \
  "r_traitsIcESaIcEEE"
#else
#define SCOPE "_ZN5torch4lazy11ScopePusherC1ERKSs"
#endif
#define END_OF_SCOPE "_ZN5torch4lazy11ScopePusherD1Ev"

namespace {

using torch::lazy::hash_t;
using Word = unsigned __int128;  // in registers, where c10::uint128 multiplies 32 bits at a time

Word word_of(const hash_t& hash) {
  return Word{c10::Uint128High64(hash)} << 64 | c10::Uint128Low64(hash);
}

hash_t hash_of(Word word) {
  return {static_cast<uint64_t>(word >> 64), static_cast<uint64_t>(word)};
}

bool is_enabled() {
  static const bool enabled = torch::castoff::topic_enabled("lean-nodes");
  return enabled;
}

// The scopes of a thread that are open, and whether each of the first kDepth is stock's, the
// innermost one's in the lowest bit. Deeper ones are.
struct Scopes {
  uint64_t are_stock;
  unsigned depth;
};
constexpr unsigned kDepth = 64;
thread_local Scopes scopes{0, 0};

// An operator's scope, not one that a program has named.
bool is_unread(const std::string& name) {
  return !FLAGS_torch_lazy_ir_debug &&
         (name.compare(0, 6, "aten::") == 0 || name.compare(0, 5, "xla::") == 0);
}

}  // namespace

extern "C++" {
[[gnu::visibility("default")]] hash_t hash_block(const void* data, size_t size,
                                                 const hash_t& seed) __asm__(HASH_BLOCK);
[[gnu::visibility("default")]] hash_t hash_combine(const hash_t& a,
                                                   const hash_t& b) __asm__(HASH_COMBINE);
[[gnu::visibility("default")]] void push_scope(void* self, const std::string& name) __asm__(SCOPE);
[[gnu::visibility("default")]] void pop_scope(void* self) __asm__(END_OF_SCOPE);
}

// The hashes are not behind the switch: it would cost what it switches, and they are the same.
hash_t hash_block(const void* data, size_t size, const hash_t& seed) {
  constexpr uint64_t kFactor = 0xc6a4a7935bd1e995;
  constexpr int kShift = 47;
  Word hash = word_of(seed) ^ Word { size } * kFactor;
  const auto* bytes = static_cast<const unsigned char*>(data);
  while (size > 0) {
    const size_t taken = std::min(size, sizeof(Word));
    Word part = 0;
    std::memcpy(&part, bytes, taken);
    bytes += taken;
    size -= taken;
    part *= kFactor;
    part ^= part >> kShift;
    hash = (hash ^ part * kFactor) * kFactor;
  }
  hash = (hash ^ hash >> kShift) * kFactor;
  return hash_of(hash ^ hash >> kShift);
}

hash_t hash_combine(const hash_t& a, const hash_t& b) {
  constexpr Word kFactor = Word{101} << 64 | 0x27d4eb2f165667c5;
  const Word first = word_of(a);
  return hash_of(first ^ (word_of(b) * kFactor + 0x9e3779b97f4a7c15 + (first << 6) + (first >> 2)));
}

void push_scope(void* self, const std::string& name) {
  if (!is_enabled()) return torch::castoff::Stock<&push_scope>::call(self, name);
  const bool fits = scopes.depth < kDepth;
  const bool is_stock = !fits || !is_unread(name);
  if (is_stock) torch::castoff::Stock<&push_scope>::call(self, name);
  if (fits) scopes.are_stock = scopes.are_stock << 1 | (is_stock ? 1 : 0);
  ++scopes.depth;
}

void pop_scope(void* self) {
  // With a depth of 0 it is another thread's: stock knows whether there is one.
  if (!is_enabled() || scopes.depth == 0) return torch::castoff::Stock<&pop_scope>::call(self);
  const bool fits = scopes.depth-- <= kDepth;
  const bool is_stock = !fits || (scopes.are_stock & 1) != 0;
  if (fits) scopes.are_stock >>= 1;
  if (is_stock) torch::castoff::Stock<&pop_scope>::call(self);
}
