// Caching CPU allocators for large tensors, without fragmentation.
//
// Freed blocks are cached as pages. A request takes the smallest cached block that is large enough,
// or the first part of it. Where none is, cached pages are moved together into a new address range
// (mremap changes page table entries; nothing is copied and nothing is zeroed), and the kernel is
// asked for new pages only when no cached page is left. So the process never holds more than was
// once allocated at the same time.
//
// There are two allocators, each with its own pages:
//   scoped   registered as torch's CPU allocator between `enter` and `leave`
//            (engine/cpu_allocator.py: caching_allocator); caches everything there, nothing outside
//   results  for the outputs of fused activations outside such a scope (memory.py); caches a bounded
//            amount; torch does not know it
// Both live until the process ends: tensors may outlive every scope.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#ifdef __GLIBC__
#include <malloc.h>
#endif

namespace {

constexpr size_t HUGE_FROM = size_t(1) << 22;  // from this size on, transparent huge pages pay

// A part of one kernel mapping: the most that one mremap can move.
struct Piece {
  size_t size;
  size_t mapping;
};

using Pieces = std::vector<Piece>;

// A contiguous address range, as the pieces that it consists of.
struct Block {
  size_t size;
  Pieces pieces;
};

void append(Pieces& to, const Pieces& more) {
  for (const Piece& piece : more) {
    // Neighbours of one mapping were split by this allocator, not by the kernel.
    if (!to.empty() && to.back().mapping == piece.mapping) {
      to.back().size += piece.size;
    } else {
      to.push_back(piece);
    }
  }
}

// Removes and returns the first `size` bytes of `pieces`.
Pieces split(Pieces& pieces, size_t size) {
  Pieces head;
  size_t whole = 0;
  for (; size && pieces[whole].size <= size; ++whole) {
    head.push_back(pieces[whole]);
    size -= pieces[whole].size;
  }
  if (size) {
    head.push_back({size, pieces[whole].mapping});
    pieces[whole].size -= size;
  }
  pieces.erase(pieces.begin(), pieces.begin() + whole);
  return head;
}

// Allocated and cached pages. Callers hold `lock`, except for `allocate`, `free` and `owns`.
//
// Invariant: the pool owns every address of `allocated_` and `cached_`, and changes mappings only
// there or in a new mapping that it has just made. No address is mapped with MAP_FIXED, and every
// target of MREMAP_FIXED lies inside such a new mapping, so that no mapping of another thread can be
// replaced. When an mremap fails, the kernel may or may not have unmapped the target (mremap(2) does
// not specify it): from then on the pool neither uses nor unmaps the target's addresses. They have no pages,
// so only address space is lost. This assumes that no other code unmaps a tensor's memory.
class PagePool {
 public:
  // An address with `asked` bytes of any content, or nullptr.
  void* allocate(size_t asked) {
    const size_t size = (asked + page_ - 1) / page_ * page_;
    if (size < asked) return nullptr;
    std::lock_guard<std::mutex> hold(lock);
    if (!cache_limit) return nullptr;  // out of use
    const auto fit = by_size_.lower_bound({size, nullptr});
    char* start;
    Pieces pieces;
    if (fit != by_size_.end()) {
      start = fit->second;
      pieces = take_head(start, size);
    } else {
      start = gather(size, pieces);
      if (!start) return nullptr;
    }
    allocated_bytes += size;
    allocated_.emplace(start, Block{size, std::move(pieces)});
    return start;
  }

  // False when this pool did not allocate the address.
  bool free(void* address) {
    std::lock_guard<std::mutex> hold(lock);
    const auto found = allocated_.find(address);
    if (found == allocated_.end()) return false;
    Block block = std::move(found->second);
    allocated_.erase(found);
    allocated_bytes -= block.size;
    cache(static_cast<char*>(address), std::move(block));
    trim(cache_limit);
    return true;
  }

  bool owns(void* address) {
    std::lock_guard<std::mutex> hold(lock);
    return allocated_.count(address);
  }

  // Return cached pages to the kernel until at most `most` bytes are cached, small blocks first.
  void trim(size_t most) {
    while (cached_bytes > most) {
      const auto [size, start] = *by_size_.begin();
      const size_t excess = std::min(size, cached_bytes - most);
      take_head(start, excess);
      unmap(start, excess);
    }
    if (!most) refused_ = false;
  }

  std::mutex lock;
  size_t cache_limit = 0;  // bytes that are cached at most; 0 also allocates nothing
  size_t max_pieces = 0;   // no pages are moved while there are as many: the kernel limits mappings
  size_t allocated_bytes = 0, cached_bytes = 0, moved_bytes = 0;

 private:
  // A new mapping; its pages do not exist until they are touched.
  char* map(size_t size) {
    void* made = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (made == MAP_FAILED) return nullptr;
    if (size >= HUGE_FROM) madvise(made, size, MADV_HUGEPAGE);  // advice: it may be refused
    return static_cast<char*>(made);
  }

  // Addresses that are the pool's go back to the kernel with their pages.
  void unmap(char* start, size_t size) {
    // At the limit of mappings the kernel does not split one: then only the pages are freed.
    if (size && munmap(start, size)) madvise(start, size, MADV_DONTNEED);
  }

  // A new mapping of `size` bytes that cached pages are moved into, those of the largest blocks
  // first; or, where none can be moved, one with new pages for as many cached ones that are
  // returned to the kernel. nullptr when out of memory.
  char* gather(size_t size, Pieces& pieces) {
    char* start = map(size);
    if (!start && cached_bytes) {
      trim(0);
      start = map(size);
    }
    if (!start) return nullptr;
    const size_t mapping = ++mappings_;
    const bool moves = !refused_ && num_pieces() < max_pieces;
    size_t filled = 0;
    while (filled < size && cached_bytes) {
      const auto [largest, from] = *by_size_.rbegin();
      const size_t taken = std::min(largest, size - filled);
      Pieces sources = take_head(from, taken);
      if (!moves) {
        unmap(from, taken);
        append(pieces, {{taken, mapping}});
        filled += taken;
        continue;
      }
      char* source = from;
      while (!sources.empty()) {
        const Piece piece = sources.front();
        if (!move(source, start + filled, piece.size)) {
          // The target, [filled, rest) of the new mapping, is abandoned: see the invariant.
          refused_ = true;
          const size_t rest = filled + piece.size;
          unmap(start + rest, size - rest);
          if (filled) cache(start, {filled, std::move(pieces)});
          cache(source, {size_t(from + taken - source), std::move(sources)});
          pieces.clear();
          return gather(size, pieces);
        }
        pieces.push_back({piece.size, ++mappings_});
        source += piece.size;
        filled += piece.size;
        sources.erase(sources.begin());
      }
    }
    if (filled < size) append(pieces, {{size - filled, mapping}});
    return start;
  }

  bool move(char* from, char* to, size_t size) {
    if (mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) return false;
    moved_bytes += size;
    return true;
  }

  // The first `size` bytes of the cached block at `start`; the rest stays cached.
  Pieces take_head(char* start, size_t size) {
    Block block = remove(start);
    Pieces head = split(block.pieces, size);
    if (block.size > size) cache(start + size, {block.size - size, std::move(block.pieces)});
    return head;
  }

  // Cache a block, coalesced with the cached blocks that it touches.
  void cache(char* start, Block block) {
    const auto next = cached_.find(start + block.size);
    if (next != cached_.end()) {
      const Block behind = remove(next->first);
      block.size += behind.size;
      append(block.pieces, behind.pieces);
    }
    const auto after = cached_.lower_bound(start);
    if (after != cached_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second.size == start) {
        start = before->first;
        Block joined = remove(start);
        joined.size += block.size;
        append(joined.pieces, block.pieces);
        block = std::move(joined);
      }
    }
    cached_bytes += block.size;
    by_size_.insert({block.size, start});
    cached_.emplace(start, std::move(block));
  }

  Block remove(char* start) {
    const auto found = cached_.find(start);
    Block block = std::move(found->second);
    cached_.erase(found);
    by_size_.erase({block.size, start});
    cached_bytes -= block.size;
    return block;
  }

  size_t num_pieces() const {
    size_t found = 0;
    for (const auto& [start, block] : cached_) found += block.pieces.size();
    for (const auto& [start, block] : allocated_) found += block.pieces.size();
    return found;
  }

  const size_t page_ = sysconf(_SC_PAGESIZE);
  std::map<char*, Block> cached_;
  std::set<std::pair<size_t, char*>> by_size_;
  std::unordered_map<void*, Block> allocated_;
  size_t mappings_ = 0;
  bool refused_ = false;  // whether an mremap failed since the cache was last emptied
};

struct Pools {
  PagePool scoped, results;
};

Pools& pools();

void lock_pools() { pools().scoped.lock.lock(), pools().results.lock.lock(); }

void unlock_pools() { pools().results.lock.unlock(), pools().scoped.lock.unlock(); }

Pools& pools() {
  static Pools* made = [] {
    // A child of fork in which another thread held a lock would wait forever.
    pthread_atfork(&lock_pools, &unlock_pools, &unlock_pools);
    return new Pools;  // never destroyed: tensors may outlive everything else
  }();
  return *made;
}

// Changed under the lock of the scoped pool.
std::atomic<size_t> scopes = 0;      // that were entered and not left
c10::Allocator* previous = nullptr;  // torch's, below the scoped one
bool registered = false;             // whether torch may have the scoped one

void restore();

// The deleter of every tensor whose memory is a pool's.
void delete_block(void* address) {
  // Before the address can be allocated again; torch's profiler counts by address.
  c10::profiledCPUMemoryReporter().Delete(address);
  if (!pools().scoped.free(address)) {
    pools().results.free(address);
  } else if (!scopes) {
    std::lock_guard<std::mutex> hold(pools().scoped.lock);
    restore();
  }
}

c10::DataPtr block_or_null(PagePool& pool, size_t size) {
  void* address = pool.allocate(size);
  if (address) c10::profiledCPUMemoryReporter().New(address, size);
  return {address, address, &delete_block, c10::Device(c10::DeviceType::CPU)};
}

void delete_any(void* address) {
  if (pools().scoped.owns(address)) {
    delete_block(address);
  } else if (address) {
    previous->raw_deleter()(address);
  }
}

class Scoped final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (size >= from && scopes) {
      if (c10::DataPtr found = block_or_null(pools().scoped, size)) return found;
    }
    return previous->allocate(size);  // which raises when there is too little memory
  }

  // For oneDNN, which allocates bare addresses, and may free them with another scope or none.
  c10::DeleterFnPtr raw_deleter() const override {
    return previous->raw_deleter() ? &delete_any : nullptr;
  }

  void copy_data(void* to, const void* source, size_t size) const override {
    default_copy_data(to, source, size);
  }

  std::atomic<size_t> from = 0;
};

class Results final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t size) override {
    if (!scopes) {
      if (c10::DataPtr found = block_or_null(pools().results, size)) return found;
    }
    return c10::GetCPUAllocator()->allocate(size);
  }

  void copy_data(void* to, const void* source, size_t size) const override {
    default_copy_data(to, source, size);
  }
};

Scoped& scoped() {
  static Scoped* made = new Scoped;
  return *made;
}

// Outside of scopes, with nothing allocated: torch has its own allocator again. Until then the scoped
// one stays and forwards every request, because oneDNN frees bare addresses through the allocator
// that torch has at that moment.
void restore() {
  if (scopes || pools().scoped.allocated_bytes || c10::GetCPUAllocator() != &scoped()) return;
  c10::SetCPUAllocator(previous);
  registered = c10::GetCPUAllocator() == &scoped();
}

}  // namespace

// Until `leave`, tensors of `from` bytes and more are allocated here. Scopes nest.
// entered   0 when torch keeps another allocator, because of its priority
extern "C" void enter(size_t from, size_t max_pieces, int* entered) {
  PagePool& pool = pools().scoped;
  std::lock_guard<std::mutex> hold(pool.lock);
  if (!scopes) {
    if (!registered) {
      previous = c10::GetCPUAllocator();
      c10::SetCPUAllocator(&scoped());  // priority 0: what has a higher one stays
    }
    *entered = c10::GetCPUAllocator() == &scoped();
    if (!*entered) return;
    registered = true;
    scoped().from = from;
    std::lock_guard<std::mutex> hold_results(pools().results.lock);
    pools().results.trim(0);  // else the peak would count both caches
    pool.max_pieces = max_pieces;
    pool.cache_limit = SIZE_MAX;
  }
  *entered = 1;
  ++scopes;
}

// At the end of the outermost scope, return what is cached to the kernel, and to torch its allocator.
extern "C" void leave() {
  PagePool& pool = pools().scoped;
  std::lock_guard<std::mutex> hold(pool.lock);
  if (--scopes) return;
  pool.cache_limit = 0;
  pool.trim(0);
  restore();
}

// The address of the allocator for results, which caches at most `limit` bytes.
extern "C" void results_allocator(size_t limit, size_t max_pieces, size_t* address) {
  static Results* made = new Results;
  std::lock_guard<std::mutex> hold(pools().results.lock);
  pools().results.cache_limit = limit;
  pools().results.max_pieces = max_pieces;
  *address = reinterpret_cast<size_t>(static_cast<c10::Allocator*>(made));
}

// Return what is cached to the kernel.
extern "C" void empty_cache() {
  for (PagePool* pool : {&pools().scoped, &pools().results}) {
    std::lock_guard<std::mutex> hold(pool->lock);
    pool->trim(0);
  }
#ifdef __GLIBC__
  malloc_trim(0);  // smaller tensors: the C library keeps what each thread has freed
#endif
}

// Bytes that are allocated, cached, and were moved so far: of scopes, then of results.
extern "C" void memory_stats(size_t* six) {
  for (PagePool* pool : {&pools().scoped, &pools().results}) {
    std::lock_guard<std::mutex> hold(pool->lock);
    *six++ = pool->allocated_bytes, *six++ = pool->cached_bytes, *six++ = pool->moved_bytes;
  }
}
