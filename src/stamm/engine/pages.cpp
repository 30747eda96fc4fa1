// Memory for large tensors on a CPU of which nothing is lost in holes; heap.py puts it in place.
//
// What is freed is kept as pages. A request takes a free run of its size, or the head of the next
// larger one. Where there is none, free runs are moved together into a new range of addresses:
// mremap moves entries of the page table, nothing is copied and nothing is zeroed. The system is
// asked for new pages only when no free one is left, so that never more is held than was once in
// use at the same time.

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>

#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace {

constexpr size_t HUGE_FROM = size_t(1) << 22;  // in a range of this size large pages pay

// Part of one mapping of the system's: mremap takes no more at a time.
struct Piece {
  size_t size;
  size_t mapping;
};

using Pieces = std::vector<Piece>;

// Addresses without a gap.
struct Run {
  size_t size;
  Pieces pieces;
};

void append(Pieces& to, const Pieces& more) {
  for (const Piece& piece : more) {
    // Neighbours of one mapping were cut by ourselves, not by the system.
    if (!to.empty() && to.back().mapping == piece.mapping) {
      to.back().size += piece.size;
    } else {
      to.push_back(piece);
    }
  }
}

// The first `size` bytes of `pieces`, which keep the rest.
Pieces cut(Pieces& pieces, size_t size) {
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

class Pages {
 public:
  // An address with `asked` bytes of any content behind it, or nullptr.
  void* take(size_t asked) {
    const size_t size = (asked + page_ - 1) / page_ * page_;
    if (size < asked) return nullptr;
    std::lock_guard<std::mutex> hold(lock);
    const auto found = by_size_.lower_bound({size, nullptr});
    char* start = nullptr;
    Pieces pieces;
    if (found != by_size_.end()) {
      start = found->second;
      pieces = head_of(start, size);
    } else {
      start = fresh(size);
      if (!start) return nullptr;
      if (!fill(start, size, pieces)) {
        munmap(start, size);
        return nullptr;
      }
    }
    in_use_ += size;
    used_.emplace(start, Run{size, std::move(pieces)});
    return start;
  }

  // False when the address is none of ours.
  bool give_back(void* address) {
    std::lock_guard<std::mutex> hold(lock);
    const auto found = used_.find(address);
    if (found == used_.end()) return false;
    Run run = std::move(found->second);
    used_.erase(found);
    in_use_ -= run.size;
    insert(static_cast<char*>(address), std::move(run));
    return true;
  }

  // Give the system every page that no tensor uses.
  void release() {
    std::lock_guard<std::mutex> hold(lock);
    let_go();
  }

  // Bytes in use, kept, and moved so far.
  void figures(size_t* three) {
    std::lock_guard<std::mutex> hold(lock);
    three[0] = in_use_, three[1] = kept_, three[2] = moved_;
  }

  std::mutex lock;
  size_t most_pieces = 0;

 private:
  // Whether there was anything.
  bool let_go() {
    if (free_.empty()) return false;
    for (const auto& [start, run] : free_) munmap(start, run.size);
    free_.clear();
    by_size_.clear();
    kept_ = 0;
    return true;
  }

  char* map(char* place, size_t size) {
    const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | (place ? MAP_FIXED : 0);
    void* made = mmap(place, size, PROT_READ | PROT_WRITE, flags, -1, 0);
    if (made == MAP_FAILED) return nullptr;
    if (size >= HUGE_FROM) madvise(made, size, MADV_HUGEPAGE);  // advice: it may be refused
    return static_cast<char*>(made);
  }

  // Addresses whose pages the system makes when they are touched.
  char* fresh(size_t size) {
    char* made = map(nullptr, size);
    return made || !let_go() ? made : map(nullptr, size);
  }

  // Put free pages under the addresses from `start` on, the largest runs first, as far as they
  // reach. False when addresses are left without any.
  bool fill(char* start, size_t size, Pieces& pieces) {
    size_t filled = 0;
    const bool moves = num_pieces() < most_pieces;
    while (filled < size && !by_size_.empty()) {
      const auto [largest, from] = *by_size_.rbegin();
      const size_t taken = std::min(largest, size - filled);
      char* source = from;
      for (const Piece& piece : head_of(from, taken)) {
        if (!moves || !move(source, start + filled, piece.size)) {
          // So many mappings that the system takes no more: as many pages go, and new ones come.
          munmap(source, piece.size);
          if (!map(start + filled, piece.size)) {
            source += piece.size;
            if (source < from + taken) munmap(source, from + taken - source);
            return false;
          }
        }
        pieces.push_back({piece.size, ++mappings_});
        source += piece.size;
        filled += piece.size;
      }
    }
    if (filled < size) pieces.push_back({size - filled, ++mappings_});
    return true;
  }

  bool move(char* from, char* to, size_t size) {
    if (mremap(from, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, to) == MAP_FAILED) return false;
    moved_ += size;
    return true;
  }

  // The first `size` bytes of the free run at `start`; what is left of it stays free.
  Pieces head_of(char* start, size_t size) {
    Run run = remove(start);
    Pieces head = cut(run.pieces, size);
    if (run.size > size) insert(start + size, {run.size - size, std::move(run.pieces)});
    return head;
  }

  // Keep a run, as one with the free ones that it touches.
  void insert(char* start, Run run) {
    const auto next = free_.find(start + run.size);
    if (next != free_.end()) {
      const Run behind = remove(next->first);
      run.size += behind.size;
      append(run.pieces, behind.pieces);
    }
    const auto after = free_.lower_bound(start);
    if (after != free_.begin()) {
      const auto before = std::prev(after);
      if (before->first + before->second.size == start) {
        start = before->first;
        Run joined = remove(start);
        joined.size += run.size;
        append(joined.pieces, run.pieces);
        run = std::move(joined);
      }
    }
    kept_ += run.size;
    by_size_.insert({run.size, start});
    free_.emplace(start, std::move(run));
  }

  Run remove(char* start) {
    const auto found = free_.find(start);
    Run run = std::move(found->second);
    free_.erase(found);
    by_size_.erase({run.size, start});
    kept_ -= run.size;
    return run;
  }

  size_t num_pieces() const {
    size_t found = 0;
    for (const auto& [start, run] : free_) found += run.pieces.size();
    for (const auto& [start, run] : used_) found += run.pieces.size();
    return found;
  }

  const size_t page_ = sysconf(_SC_PAGESIZE);
  std::map<char*, Run> free_;
  std::set<std::pair<size_t, char*>> by_size_;
  std::unordered_map<void*, Run> used_;
  size_t kept_ = 0, in_use_ = 0, moved_ = 0, mappings_ = 0;
};

Pages& pages() {
  static Pages* made = new Pages;  // never destroyed: tensors may end after everything else
  return *made;
}

c10::Allocator* small = nullptr;

void delete_large(void* address) { pages().give_back(address); }

void delete_any(void* address) {
  if (address && !pages().give_back(address)) small->raw_deleter()(address);
}

class Allocator final : public c10::Allocator {
 public:
  explicit Allocator(size_t from) : from_(from) {}

  c10::DataPtr allocate(size_t size) override {
    void* address = size < from_ ? nullptr : pages().take(size);
    if (!address) return small->allocate(size);  // which tells when there is too little memory
    return {address, address, &delete_large, c10::Device(c10::DeviceType::CPU)};
  }

  // oneDNN's products work with bare addresses.
  c10::DeleterFnPtr raw_deleter() const override { return &delete_any; }

  void copy_data(void* to, const void* from, size_t size) const override {
    default_copy_data(to, from, size);
  }

 private:
  size_t from_;
};

}  // namespace

// From now on tensors of `from` bytes and more lie in pages that are kept, in at most `most_pieces`
// mappings. Called once.
extern "C" void take_over(size_t from, size_t most_pieces) {
  small = c10::GetCPUAllocator();
  pages().most_pieces = most_pieces;
  // A child in which another thread held the lock would wait for ever.
  pthread_atfork([] { pages().lock.lock(); }, [] { pages().lock.unlock(); },
                 [] { pages().lock.unlock(); });
  c10::SetCPUAllocator(new Allocator(from), /*priority=*/1);
}

extern "C" void release() { pages().release(); }

extern "C" void figures(size_t* three) { pages().figures(three); }
