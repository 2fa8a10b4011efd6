// A CPU in place of a Hopper GPU: what hopper.cu writes in assembler, and what CUDA has of its own.
//
// A thread of a block is a fiber, a block an operating system's thread; blocks of a cluster run at once. Warps exchange numbers where
// all their threads meet, so a thread that does not come is found: the program then says so and ends. Asynchronous copies and products
// are done at once or, if LATE is set, as late as can be: when somebody waits for them. Until then there are no numbers where they will
// be, and threads take turns in any order. So who reads or overwrites too early is found. How memory orders what is written is not shown.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#define __device__
#define __forceinline__ inline
#define __shared__ static thread_local
#define __align__(n) __attribute__((aligned(n)))
#define __global__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
using std::max;
using std::min;
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct uint2 { uint32_t x, y; };
struct int2 { int x, y; };
struct uint4 { uint32_t x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
#if defined(__aarch64__)
typedef __fp16 half;  // GCC knows _Float16 in C++ there from version 13 on
#else
typedef _Float16 half;
#endif
struct half2 { half x, y; };
struct __nv_bfloat16 { uint16_t bits; };
inline float2 __half22float2(half2 h) { return {(float)h.x, (float)h.y}; }
inline float __uint_as_float(uint32_t x) { float f; memcpy(&f, &x, 4); return f; }
inline uint32_t __float_as_uint(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
inline int __float_as_int(float x) { return (int)__float_as_uint(x); }
inline float __int_as_float(int x) { return __uint_as_float((uint32_t)x); }
inline int atomicMax(int* p, int x) { const int old = *p; *p = max(old, x); return old; }  // threads of a block take turns
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }

// ------------------------------------------------------------------------------------------------- threads, warps, blocks, clusters
constexpr int STACK = 256 << 10;
inline const bool LATE = getenv("LATE") != nullptr;
typedef std::vector<std::function<void()>> Products;
struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack;
  int thread = 0;
  bool done = false;
  Products begun;                 // and not committed
  std::deque<Products> groups;    // committed, and not done
  std::vector<const void*> open;  // sums that are not numbers yet, once for each product
};
struct Copy { void* to; const void* from; int bytes; uint64_t* barrier; };
struct Meeting { int here = 0; unsigned times = 0; };
struct Warp : Meeting { uint64_t given[2][32][6]; };
struct Block;
struct Cluster { int size = 1; std::atomic<int> begun{0}, here{0}; std::atomic<unsigned> times{0}, progress{0}; std::vector<Block*> blocks; };
struct Block {
  int x, y, width, height, threads, at_cluster = 0;
  Meeting all, pair, warpgroups[4];
  bool any = false;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
  std::vector<Copy> copies;  // that are not done
  std::vector<unsigned char> memory;
  unsigned char* dynamic = nullptr;
  char* statics = nullptr;  // a place among this block's shared variables, the same in each
  Cluster* cluster = nullptr;
  ucontext_t scheduler;
  Fiber* now = nullptr;
  std::function<void()> kernel;
};
inline thread_local Block* block_;
inline thread_local char statics_[16];
#define raw (block_->dynamic)
template <int Block::*field> struct Field { operator int() const { return block_->*field; } };
inline struct { struct { operator int() const { return block_->now->thread; } } x; } threadIdx;
inline struct { Field<&Block::x> x; Field<&Block::y> y; } blockIdx;
inline struct { Field<&Block::width> x; Field<&Block::height> y; } gridDim;

inline void wait_for(const std::function<bool()>& ready) {
  while (!ready()) swapcontext(&block_->now->context, &block_->scheduler);
  block_->cluster->progress++;
}
inline void meet(Meeting& m, int threads) {
  const unsigned times = m.times;
  if (++m.here == threads) { m.here = 0; m.times++; }
  wait_for([&] { return m.times != times; });
}
inline void __syncthreads() { meet(block_->all, block_->threads); }
inline void pair_sync() { meet(block_->pair, 256); }
inline bool pair_or(bool x) {
  block_->any = false;
  pair_sync();
  block_->any |= x;
  pair_sync();
  const bool found = block_->any;
  pair_sync();
  return found;
}
template <int N> inline void more_registers() {}
template <int N> inline void fewer_registers() {}
inline void warpgroup_sync(int which) { meet(block_->warpgroups[which], 128); }
// What every thread of the warp gives; they all come here.
inline uint64_t (*all_give(std::initializer_list<uint64_t> mine))[6] {
  Warp& w = block_->warps[block_->now->thread >> 5];
  auto given = w.given[w.times & 1];
  int i = 0;
  for (uint64_t x : mine) given[block_->now->thread & 31][i++] = x;
  meet(w, 32);
  return given;
}
inline int lane_() { return block_->now->thread & 31; }
inline void __syncwarp() { all_give({0}); }
inline float __shfl_xor_sync(unsigned, float x, int turn) { return __uint_as_float((uint32_t)all_give({__float_as_uint(x)})[lane_() ^ turn][0]); }
inline int __shfl_sync(unsigned, int x, int from) { return (int)(uint32_t)all_give({(uint32_t)x})[from][0]; }
inline unsigned __ballot_sync(unsigned, bool x) {
  auto all = all_give({x});
  unsigned found = 0;
  for (int i = 0; i < 32; i++) found |= (unsigned)all[i][0] << i;
  return found;
}
inline bool __any_sync(unsigned, bool x) { return __ballot_sync(~0u, x) != 0; }
inline void cluster_sync() {
  Cluster& c = *block_->cluster;
  const unsigned times = c.times;
  if (++block_->at_cluster == block_->threads) {
    block_->at_cluster = 0;
    if (++c.here == c.size) { c.here = 0; c.times++; }
  }
  wait_for([&] { return c.times != times; });
}
inline void cluster_leave() { cluster_sync(); }

inline void run_block(Block& b) {
  block_ = &b;
  b.statics = statics_;
  for (b.cluster->begun++; b.cluster->begun < b.cluster->size;) std::this_thread::yield();
  b.fibers = std::vector<Fiber>(b.threads);
  b.warps = std::vector<Warp>(b.threads / 32);
  for (int t = 0; t < b.threads; t++) {
    Fiber& f = b.fibers[t];
    f.thread = t;
    f.stack.reset(new char[STACK]);
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack.get();
    f.context.uc_stack.ss_size = STACK;
    makecontext(&f.context, +[] { block_->kernel(); block_->now->done = true; swapcontext(&block_->now->context, &block_->scheduler); }, 0);
  }
  // Nobody in the cluster went on while each thread here had its turn: other blocks may still be at work, a block alone waits for ever.
  const int most = b.cluster->size > 1 ? 50000 : 2;
  std::vector<Fiber*> order;
  for (Fiber& f : b.fibers) order.push_back(&f);
  std::mt19937 random(b.x + 1);
  for (int left = b.threads, idle = 0; left;) {
    const unsigned progress = b.cluster->progress;
    left = 0;
    if (LATE) std::shuffle(order.begin(), order.end(), random);
    for (Fiber* f : order)
      if (!f->done) { b.now = f; swapcontext(&b.scheduler, &f->context); left += !f->done; b.cluster->progress += f->done; }
    idle = b.cluster->progress == progress ? idle + 1 : 0;
    if (idle > most) { fprintf(stderr, "%d threads of block %d, %d wait for ever\n", left, b.x, b.y); _exit(3); }
    std::this_thread::yield();
  }
}
inline void launch(int width, int height, int threads, long bytes, int size, const std::function<void()>& kernel) {
  for (int y = 0; y < height; y++)
    for (int x = 0; x < width; x += size) {
      Cluster cluster;
      cluster.size = size;
      std::vector<Block> blocks(size);
      std::vector<std::thread> running;
      for (int r = 0; r < size; r++) {
        Block& b = blocks[r];
        b.x = x + r; b.y = y; b.width = width; b.height = height; b.threads = threads; b.cluster = &cluster; b.kernel = kernel;
        b.memory.assign(bytes + 256, 0xff);  // not numbers, wherever something was not written
        b.dynamic = b.memory.data() + (128 - (uintptr_t)b.memory.data() % 128);
        cluster.blocks.push_back(&b);
      }
      for (Block& b : blocks) running.emplace_back([&b] { run_block(b); });
      for (std::thread& t : running) t.join();
    }
}
// A kernel with its arguments.
template <typename... P> std::function<void()> with(void (*kernel)(P...), void** given) {
  return [=] { [&]<size_t... I>(std::index_sequence<I...>) { kernel((P)given[I]...); }(std::index_sequence_for<P...>()); };
}

// ------------------------------------------------------------------------------------------------- what hopper.cu writes in assembler
inline float of_bf16(uint64_t pair, int which) { return __uint_as_float((uint32_t)(pair >> (16 * which)) << 16); }
inline uint32_t to_bf16(float x) { const uint32_t u = __float_as_uint(x); return x != x ? 0x7fff : (u + 0x7fff + ((u >> 16) & 1)) >> 16; }
inline uint32_t pack(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
inline uint32_t pack_half(float low, float high) {
  const half h[2] = {(half)max(-65504.f, min(65504.f, low)), (half)max(-65504.f, min(65504.f, high))};
  uint32_t y;
  memcpy(&y, h, 4);
  return y;
}
inline float ex2(float x) { return exp2f(x); }
inline float of_a(uint64_t (*all)[6], int row, int k) { return of_bf16(all[(row & 7) * 4 + ((k & 7) >> 1)][(row >> 3) + 2 * (k >> 3)], k & 1); }
inline void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  auto all = all_give({a0, a1, a2, a3, b0, b1});
  for (int i = 0; i < 4; i++) {
    const int row = (lane_() >> 2) + 8 * (i >> 1), column = 2 * (lane_() & 3) + (i & 1);
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += of_a(all, row, k) * of_bf16(all[column * 4 + ((k & 7) >> 1)][4 + (k >> 3)], k & 1);
    c[i] += sum;
  }
}
inline void load_matrices(uint32_t (&r)[4], const void* p, bool transposed) {
  auto all = all_give({(uint64_t)p});
  const int one = lane_() >> 2, two = 2 * (lane_() & 3);
  for (int i = 0; i < 4; i++) {
    auto at = [&](int row, int column) { return (uint32_t)((const uint16_t*)all[8 * i + row][0])[column]; };
    r[i] = transposed ? at(two, one) | at(two + 1, one) << 16 : at(one, two) | at(one, two + 1) << 16;
  }
  __syncwarp();
}
inline void ldmatrix(uint32_t (&r)[4], const void* p) { load_matrices(r, p, false); }
inline void ldmatrix_trans(uint32_t (&r)[4], const void* p) { load_matrices(r, p, true); }
inline uint32_t movmatrix_trans(uint32_t x) {
  auto all = all_give({x});
  const int one = lane_() >> 2, two = 2 * (lane_() & 3);
  auto at = [&](int row) { return (uint32_t)(all[row * 4 + (one >> 1)][0] >> (16 * (one & 1))) & 0xffff; };
  return at(two) | at(two + 1) << 16;
}

// A place in shared memory: of `raw`, or of a block of the cluster, from 1 on.
inline uint32_t at(const void* p) {
  const long place = (const unsigned char*)p - raw;
  if (place >= 0 && place < (long)block_->memory.size()) return (uint32_t)place;
  return (uint32_t)((const char*)p - statics_ + (1 << 27));
}
inline uint32_t in_block(uint32_t place, int rank) { return place | (uint32_t)(rank + 1) << 28; }
inline char* far_(uint32_t place) { return block_->cluster->blocks[(place >> 28) - 1]->statics + (int)(place & 0xfffffff) - (1 << 27); }
struct Barrier { int32_t bytes; int16_t missing, phase; };
static_assert(sizeof(Barrier) == 8, "as on the device");
inline std::mutex barriers;
inline void count(void* barrier, int bytes, int arrived) {
  std::lock_guard<std::mutex> alone(barriers);
  Barrier& b = *(Barrier*)barrier;
  b.bytes += bytes; b.missing -= arrived;
  if (!b.missing && !b.bytes) { b.phase ^= 1; b.missing = 1; }
}
inline void bar_init(uint64_t* b) { *(Barrier*)b = {0, 1, 0}; }
inline void bar_ready() {}
inline void bar_expect(uint64_t* b, int bytes) { count(b, bytes, 1); }
inline void bar_arrive(uint64_t* b) { count(b, 0, 1); }
inline void do_copies(uint64_t* barrier) {
  std::vector<Copy> left;
  std::swap(left, block_->copies);
  for (const Copy& c : left) {
    if (c.barrier != barrier) { block_->copies.push_back(c); continue; }
    memcpy(c.to, c.from, c.bytes);
    count(c.barrier, -c.bytes, 0);
  }
}
inline void bar_wait(uint64_t* b, int parity) {
  wait_for([&] {
    if (LATE) do_copies(b);
    return __atomic_load_n(&((Barrier*)b)->phase, __ATOMIC_SEQ_CST) != parity;
  });
}
inline void bar_wait_for_cluster(uint64_t* b, int parity) { bar_wait(b, parity); }
inline void check_copy(uintptr_t to, const void* from, int bytes) {
  if (bytes <= 0 || (to | (uintptr_t)from | bytes) % 16) { fprintf(stderr, "a copy is not in steps of 16 bytes\n"); _exit(4); }
}
inline void bulk_copy(void* to, const void* from, int bytes, uint64_t* b) {
  check_copy((uintptr_t)to, from, bytes);
  block_->copies.push_back({to, from, bytes, b});
  if (LATE) memset(to, 0xff, bytes); else do_copies(b);
}
inline void prefetch(const void* from, int bytes) { check_copy(0, from, bytes); }
inline void send(uint32_t to, uint32_t bar, uint32_t x) { memcpy(far_(to), &x, 4); count(far_(bar), -4, 0); }
inline void send4(uint32_t to, uint32_t bar, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const uint32_t four[4] = {x, y, z, w};
  memcpy(far_(to), four, 16);
  count(far_(bar), -16, 0);
}

inline void wgmma_fence() {}
inline void wgmma_commit() {
  Fiber& f = *block_->now;
  f.groups.push_back(std::move(f.begun));
  f.begun.clear();
}
template <int OPEN> inline void wgmma_wait() {
  for (auto& groups = block_->now->groups; groups.size() > OPEN; groups.pop_front())
    for (auto& product : groups.front()) product();
}
template <int N> inline void pin(float (&)[N]) {}
template <int N> inline void wgmma_wait(float (&)[N]) { wgmma_wait<0>(); }
inline void fence_async() {}
inline void no_more_loads() {}
// A number of an operand in pieces, whose first byte and strides are counted in 16 bytes.
inline float number_of(uint64_t operand, int by_columns, int index, int k) {
  const long piece = 16 * ((operand & 0xffff) + (index >> 3) * (operand >> 32) + (k >> 3) * (operand >> 16 & 0xffff));
  const int inside = by_columns ? (k & 7) * 16 + (index & 7) * 2 : (index & 7) * 16 + (k & 7) * 2;
  return of_bf16(*(const uint16_t*)(raw + piece + inside), 0);
}
// A thread has rows g and g + 8 of its warp's 16, and columns 8 j + 2 q and 1 more: d[4 j + 2 * (which row) + (which column)].
template <int N> inline void product(float (&d)[N], const std::function<float(int, int)>& left, uint64_t b, int right, int add) {
  float* const sums = d;
  auto now = [=] {
    float a[2][16];
    for (int i = 0; i < 32; i++) a[i >> 4][i & 15] = left((lane_() >> 2) + 8 * (i >> 4), i & 15);
    for (int i = 0; i < N; i++) {
      float sum = 0;
      for (int k = 0; k < 16; k++) sum += a[i >> 1 & 1][k] * number_of(b, right, 8 * (i >> 2) + 2 * (lane_() & 3) + (i & 1), k);
      sums[i] = (add ? sums[i] : 0.f) + sum;
    }
  };
  if (!LATE) return now(), __syncwarp();
  Fiber& f = *block_->now;
  std::vector<float> before;
  if (std::find(f.open.begin(), f.open.end(), sums) == f.open.end()) {
    before.assign(d, d + N);
    for (float& x : d) x = NAN;
  }
  f.open.push_back(sums);
  f.begun.push_back([=] {
    if (!before.empty()) std::copy(before.begin(), before.end(), sums);
    now();
    auto& open = block_->now->open;
    open.erase(std::find(open.begin(), open.end(), sums));
  });
  __syncwarp();
}
template <int N, int LEFT, int RIGHT> inline void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  const int first = 16 * (block_->now->thread >> 5 & 3);
  product(d, [=](int row, int k) { return number_of(a, LEFT, first + row, k); }, b, RIGHT, add);
}
template <int N, int RIGHT> inline void wgmma_regs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {
  struct { uint64_t numbers[32][6]; } given;
  memcpy(given.numbers, all_give({a[0], a[1], a[2], a[3]}), sizeof given);
  product(d, [=](int row, int k) mutable { return of_a(given.numbers, row, k); }, b, RIGHT, add);
}
