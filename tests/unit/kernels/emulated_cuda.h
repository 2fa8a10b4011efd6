// A CPU in place of a Hopper GPU, for the kernels of lstm.cu: what they write in assembler, and what CUDA has of its own.
//
// A thread of a block is a fiber, a block an operating system's thread; blocks of a cluster run at once. Warps exchange numbers where
// all their threads meet, so a thread that does not come is found: the program then says so and ends. Copies and products that
// run by themselves are done at once: that nobody reads too early is not shown here, nor how memory orders what is written.
#pragma once
#include <ucontext.h>

#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
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
struct uint4 { uint32_t x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
typedef _Float16 half;
struct half2 { half x, y; };
struct __nv_bfloat16 { uint16_t bits; };
inline float2 __half22float2(half2 h) { return {(float)h.x, (float)h.y}; }
inline float __uint_as_float(uint32_t x) { float f; memcpy(&f, &x, 4); return f; }
inline uint32_t __float_as_uint(float x) { uint32_t u; memcpy(&u, &x, 4); return u; }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }

// ------------------------------------------------------------------------------------------------- threads, warps, blocks, clusters
constexpr int STACK = 256 << 10;
struct Fiber { ucontext_t context; std::unique_ptr<char[]> stack; int thread = 0; bool done = false; };
struct Warp { int here = 0; unsigned times = 0; uint64_t given[2][32][6]; };
struct Block;
struct Cluster { int size = 1; std::atomic<int> begun{0}, here{0}; std::atomic<unsigned> times{0}; std::vector<Block*> blocks; };
struct Block {
  int x, y, width, height, threads, here = 0, at_cluster = 0;
  unsigned times = 0;
  std::vector<Fiber> fibers;
  std::vector<Warp> warps;
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
  for (long turns = 0; !ready(); turns++) {
    if (turns > 3000000) { fprintf(stderr, "thread %d of block %d waits for ever\n", block_->now->thread, block_->x); _exit(3); }
    swapcontext(&block_->now->context, &block_->scheduler);
  }
}
inline void __syncthreads() {
  Block& b = *block_;
  const unsigned times = b.times;
  if (++b.here == b.threads) { b.here = 0; b.times++; }
  wait_for([&] { return b.times != times; });
}
// What every thread of the warp gives; they all come here.
inline uint64_t (*all_give(std::initializer_list<uint64_t> mine))[6] {
  Warp& w = block_->warps[block_->now->thread >> 5];
  const unsigned times = w.times;
  int i = 0;
  for (uint64_t x : mine) w.given[times & 1][block_->now->thread & 31][i++] = x;
  if (++w.here == 32) { w.here = 0; w.times++; }
  wait_for([&] { return w.times != times; });
  return w.given[times & 1];
}
inline int lane_() { return block_->now->thread & 31; }
inline void __syncwarp() { all_give({0}); }
inline float __shfl_xor_sync(unsigned, float x, int turn) { return __uint_as_float((uint32_t)all_give({__float_as_uint(x)})[lane_() ^ turn][0]); }
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
  for (int left = b.threads; left;) {
    left = 0;
    for (Fiber& f : b.fibers)
      if (!f.done) { b.now = &f; swapcontext(&b.scheduler, &f.context); left += !f.done; }
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

// ------------------------------------------------------------------------------------------------- what lstm.cu writes in assembler
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
inline void load_squares(uint32_t (&r)[4], const void* p, bool turned) {
  auto all = all_give({(uint64_t)p});
  const int one = lane_() >> 2, two = 2 * (lane_() & 3);
  for (int i = 0; i < 4; i++) {
    auto at = [&](int row, int column) { return (uint32_t)((const uint16_t*)all[8 * i + row][0])[column]; };
    r[i] = turned ? at(two, one) | at(two + 1, one) << 16 : at(one, two) | at(one, two + 1) << 16;
  }
  __syncwarp();
}
inline void ldsm4(uint32_t (&r)[4], const void* p) { load_squares(r, p, false); }
inline void ldsm4t(uint32_t (&r)[4], const void* p) { load_squares(r, p, true); }
inline uint32_t movm(uint32_t x) {
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
struct Barrier { int32_t bytes; int16_t missing; uint8_t phase, count; };
inline std::mutex barriers;
inline void count(void* barrier, int bytes, int arrived) {
  std::lock_guard<std::mutex> alone(barriers);
  Barrier& b = *(Barrier*)barrier;
  b.bytes += bytes; b.missing -= arrived;
  if (!b.missing && !b.bytes) { b.phase ^= 1; b.missing = b.count; }
}
inline void bar_init(uint64_t* b, int n) { *(Barrier*)b = {0, (int16_t)n, 0, (uint8_t)n}; }
inline void bar_ready() {}
inline void bar_expect(uint64_t* b, int bytes) { count(b, bytes, 1); }
inline void bar_wait(uint64_t* b, int parity) { wait_for([&] { return __atomic_load_n(&((Barrier*)b)->phase, __ATOMIC_SEQ_CST) != parity; }); }
inline void bulk(void* to, const void* from, int bytes, uint64_t* b) {
  if (((uintptr_t)to | (uintptr_t)from | bytes) % 16) { fprintf(stderr, "a copy is not in steps of 16 bytes\n"); _exit(4); }
  memcpy(to, from, bytes);
  count(b, -bytes, 0);
}
inline void soon(const void*, int) {}
inline void send(uint32_t to, uint32_t bar, uint32_t x) { memcpy(far_(to), &x, 4); count(far_(bar), -4, 0); }
inline void send4(uint32_t to, uint32_t bar, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  const uint32_t four[4] = {x, y, z, w};
  memcpy(far_(to), four, 16);
  count(far_(bar), -16, 0);
}

inline void wg_begin() {}
inline void wg_commit() {}
template <int N> inline void wg_wait() {}
template <int N> inline void pin(float (&)[N][4]) {}
inline void shared_ready() {}
inline void no_more_loads() {}
inline uint64_t squares_at(const void* p, int along, int across) { return at(p) >> 4 | (uint64_t)(along >> 4) << 16 | (uint64_t)(across >> 4) << 32; }
template <int N> inline void product(float (&d)[N][4], std::initializer_list<uint64_t> a, uint64_t b, int add, int of_row, int of_column) {
  auto all = all_give(a);
  for (int n = 0; n < N; n++)
    for (int i = 0; i < 4; i++) {
      const int row = (lane_() >> 2) + 8 * (i >> 1), column = 2 * (lane_() & 3) + (i & 1);
      float sum = 0;
      for (int k = 0; k < 16; k++) {
        const long place = 16 * ((b & 0xffff) + n * (b >> 32) + (k >> 3) * (b >> 16 & 0xffff)) + column * of_column + (k & 7) * of_row;
        sum += of_a(all, row, k) * of_bf16(*(const uint16_t*)(raw + place), 0);
      }
      d[n][i] = (add ? d[n][i] : 0.f) + sum;
    }
  __syncwarp();
}
template <int N> inline void multiply(float (&d)[N][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int add) {
  product(d, {a0, a1, a2, a3}, b, add, 2, 16);
}
template <int N> inline void multiply_turned(float (&d)[N][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int add) {
  product(d, {a0, a1, a2, a3}, b, add, 16, 2);
}
