"""The allocator of mapped pages: no tensor overwrites another, none of other threads' mappings is
touched, no more is held than was allocated at once."""

from __future__ import annotations

import pytest

from stamm.activations.fused import build
from tests.unit.allocator_process import shown

pytestmark = pytest.mark.skipif(
    bool(build.unavailable_reason()), reason=str(build.unavailable_reason())
)


@pytest.mark.parametrize("max_pieces", [0, 30, 2**14])
def test_no_more_is_held_than_was_allocated_at_once(max_pieces: int) -> None:
    """And no tensor is overwritten, whether pages are moved or, in too many pieces, are not."""
    found = shown(f"""
torch.set_num_threads(1)
torch.full((MIB,), 1.0).sum()
enter(max_pieces={max_pieces})
before = resident()
highest = churn(seed=1, rounds=1000)
end = figures()
show({{"highest": highest, "held": resident("VmHWM") - before, **end}})
""")
    assert found["allocated"] == 0
    # Whole pages of tensors of 16 KiB and more, and the C library's share below 64 KiB.
    assert found["cached"] <= found["highest"] * 1.01
    assert found["held"] <= found["highest"] * 1.01 + 4 * 2**20
    assert (found["moved"] > 0) == (max_pieces > 0)


def test_without_it_fragmentation_is_seen() -> None:
    """The measure tells a difference: the C library's heap, set to keep what is freed."""
    found = shown("""
torch.set_num_threads(1)
libc = ctypes.CDLL(None)
libc.mallopt(-3, 2**25), libc.mallopt(-1, 2**31 - 1)
torch.full((MIB,), 1.0).sum()
before = resident()
highest = churn(seed=1, rounds=1000)
show({"highest": highest, "held": resident("VmHWM") - before})
""")
    assert found["held"] > found["highest"] * 1.1


def test_the_same_again_asks_the_kernel_for_nothing() -> None:
    found = shown("""
torch.set_num_threads(1)
enter()
counted = []
for _ in range(4):
    before, moved = faults(), figures()["moved"]
    churn(seed=2, rounds=200)
    counted.append((faults() - before, figures()["moved"] - moved))
show(counted)
""")
    assert found[0][0] > 10 * found[-1][0]
    assert found[-1][0] < 100


def test_threads_allocate_and_free_at_once() -> None:
    found = shown("""
torch.set_num_threads(1)
enter()
failed = in_threads(lambda seed: churn(seed, rounds=400, most=16 * MIB), 4)
show({"failed": failed, **figures()})
""")
    assert found["failed"] == [] and found["allocated"] == 0
    assert found["cached"] <= 4 * 16 * 2**20 * 1.01


# Threads that map, fill, check and unmap memory of their own while pages are moved; and an mremap
# that fails every `_REFUSED_EVERY` calls in the worst way that mremap(2) leaves open: its target
# is unmapped already, and stays free long enough for a neighbour's mapping to take its place.
_NEIGHBOURS = r"""
#include <cerrno>
#include <cstring>
#include <thread>

static std::atomic<bool> running = false;
static std::atomic<size_t> damaged = 0, taken = 0, refused = 0;
static std::vector<std::thread> neighbours;
static std::vector<std::pair<char*, size_t>> in_holes;

static void* refusing_mremap(void* from, size_t size, size_t, int flags, void* to) {
  static size_t calls = 0;
  if (++calls % REFUSED_EVERY) return (mremap)(from, size, size, flags, to);
  ++refused;
  munmap(to, size);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // neighbours run
  void* hole = mmap(to, size, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (hole != MAP_FAILED) {
    memset(hole, 0x5a, size);
    in_holes.push_back({static_cast<char*>(hole), size});
  }
  errno = ENOMEM;
  return MAP_FAILED;
}

static size_t wrong(const char* start, size_t size, char expected) {
  size_t found = 0;
  for (size_t place = 0; place < size; place += 512) found += start[place] != expected;
  return found;
}

static void neighbour(unsigned seed) {
  while (running) {
    seed = seed * 1664525u + 1013904223u;
    const size_t size = (1 + (seed >> 8) % 512) * 4096;
    void* mine = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mine == MAP_FAILED) continue;
    memset(mine, seed, size);
    std::this_thread::yield();
    damaged += wrong(static_cast<char*>(mine), size, seed);
    munmap(mine, size);
    ++taken;
  }
}

extern "C" void start_neighbours() {
  running = true;
  for (unsigned seed = 1; seed <= 3; ++seed) neighbours.emplace_back(neighbour, seed);
}

extern "C" void stop_neighbours(size_t* four) {
  running = false;
  for (auto& each : neighbours) each.join();
  for (const auto& [start, size] : in_holes) damaged += wrong(start, size, 0x5a);
  four[0] = damaged, four[1] = taken, four[2] = refused, four[3] = in_holes.size();
}

#define mremap(from, size, same, flags, to) refusing_mremap(from, size, same, flags, to)
"""


@pytest.mark.parametrize(("every", "max_pieces"), [(7, 2**14), (7, 30), (10**9, 2**14)])
def test_no_mapping_of_another_thread_is_replaced(every: int, max_pieces: int) -> None:
    """The process ends by a signal when a neighbour's mapping is unmapped."""
    found = shown(f"""
torch.set_num_threads(1)
source, added = memory._SOURCE.read_text(), {_NEIGHBOURS!r}.replace("REFUSED_EVERY", "{every}")
source = source.replace("namespace {{", added + "namespace {{", 1)
call = lambda name: build.function(source, name, torch_headers=True)
enter(call, max_pieces={max_pieces})
call("start_neighbours")()
failed = []
for turn in range(8):
    failed += in_threads(lambda seed: churn(seed + 10 * turn, rounds=60, most=16 * MIB), 3)
    call("empty_cache")()  # and pages are moved again
four = (ctypes.c_size_t * 4)()
call("stop_neighbours")(four)
six = (ctypes.c_size_t * 6)()
call("memory_stats")(six)
show({{"failed": failed, "four": list(four), "allocated": six[0], "moved": six[2]}})
""")
    damaged, taken, refused, in_holes = found["four"]
    assert found["failed"] == [] and found["allocated"] == 0 and damaged == 0
    assert taken > 100 and found["moved"] > 0
    assert (refused > 0) == (every == 7) == (in_holes > 0)


@pytest.mark.slow
def test_at_the_kernels_limit_of_mappings_tensors_stay_intact() -> None:
    """mremap, mmap and munmap fail, as they do beside a library with tens of thousands of mappings."""
    found = shown("""
torch.set_num_threads(1)
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
limit = int(Path("/proc/sys/vm/max_map_count").read_text())
enter(max_pieces=10**9)
churn(seed=5, rounds=100)
held = [torch.ones(MIB + 4096 * n) for n in range(8)]
# Pages of alternating protection: each a mapping. A few are left for Python.
start = libc.mmap(None, ctypes.c_size_t((limit + 100) * 4096), 1, 0x22, -1, ctypes.c_size_t(0))
def protect(number, mode):
    place = ctypes.c_void_p(start + 2 * number * 4096)
    return libc.mprotect(place, ctypes.c_size_t(4096), mode) == 0
split = 0
while protect(split, 0):
    split += 1
for number in range(split - 10, split):
    protect(number, 1)
before = figures()["moved"]
churn(seed=6, rounds=300)
moved = figures()["moved"] - before
intact = all(bool((t == 1).all()) for t in held)
del held
libc.munmap(ctypes.c_void_p(start), ctypes.c_size_t((limit + 100) * 4096))
memory.empty_cache()  # and pages are moved again
limited = figures()["moved"]
churn(seed=7, rounds=300)
show({"mappings": 2 * split, "limit": limit, "moved": moved, "intact": intact,
      "moved_after": figures()["moved"] - limited, **figures()})
""")
    assert found["mappings"] > 0.95 * found["limit"]
    assert found["intact"] and found["allocated"] == 0 and found["moved_after"] > 0


def test_when_memory_runs_out_cached_memory_goes_first() -> None:
    found = shown("""
enter()
size = int(re.search(r"VmSize:\\s+(\\d+) kB", open("/proc/self/status").read())[1]) * KIB
cached = [torch.ones(2 * MIB) for _ in range(32)]  # 256 MiB
wall = [torch.ones(KIB * 128) for _ in range(8)]
del cached
noted = figures()["cached"]
limit = size + 512 * MIB
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
large = torch.ones(96 * MIB)  # 384 MiB beside them would not fit
show([noted, float(large[-1]), float(wall[0].sum())])
""")
    assert found[0] == 256 * 2**20 and found[1:] == [1.0, 128 * 1024.0]
