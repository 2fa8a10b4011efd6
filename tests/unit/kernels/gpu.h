// A GPU's block of 256 threads on a CPU, for tests of kernels where there is no GPU. Threads take turns as coroutines; what
// a warp does together waits for all 32. Copies that run by themselves, and products, are done when they are asked for.
#include <ucontext.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <vector>
using std::max;
using std::min;
#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
struct uint2 { uint32_t x, y; };
struct uint4 { uint32_t x, y, z, w; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct Place { int x, y, z; };
static Place threadIdx, blockIdx, gridDim;
alignas(128) static unsigned char raw[232448];  // shared memory
typedef _Float16 half;
struct half2 { half x, y; };
struct __nv_bfloat16 { uint16_t bits; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32_t x, uint32_t y) { return {x, y}; }
inline uint4 make_uint4(uint32_t x, uint32_t y, uint32_t z, uint32_t w) { return {x, y, z, w}; }
inline float __uint_as_float(uint32_t x) { float y; memcpy(&y, &x, 4); return y; }
inline uint32_t bits_of(float x) { uint32_t y; memcpy(&y, &x, 4); return y; }
inline int __float_as_int(float x) { return (int)bits_of(x); }
inline float __int_as_float(int x) { return __uint_as_float((uint32_t)x); }
inline float rsqrtf(float x) { return 1.f / sqrtf(x); }

// ---------------------------------------------------------------------------------------------- threads
static const int THREADS = 256;
static ucontext_t outside, inside[THREADS];
static int current;
static bool ended[THREADS];
static std::function<void()> kernel;
static void give_way() { const int me = current; swapcontext(&inside[me], &outside); current = me; threadIdx.x = me; }
struct Barrier {
  int arrived = 0, turn = 0;
  void wait(int all) {
    const int mine = turn;
    if (++arrived == all) { arrived = 0; turn++; } else while (turn == mine) give_way();
  }
};
static Barrier of_block, of_team[2], of_warp[THREADS / 32];
inline void __syncthreads() { of_block.wait(THREADS); }
inline bool __syncthreads_or(bool x) {
  static bool any;
  any = false;
  __syncthreads();
  any |= x;
  __syncthreads();
  const bool found = any;
  __syncthreads();
  return found;
}
inline void team_sync(int team) { of_team[team].wait(THREADS / 2); }
inline void __syncwarp() { of_warp[current >> 5].wait(32); }
static void begin() { kernel(); ended[current] = true; swapcontext(&inside[current], &outside); }
static void run_block() {
  static std::vector<std::vector<char>> stacks(THREADS, std::vector<char>(1 << 17));
  for (int i = 0; i < THREADS; i++) {
    getcontext(&inside[i]);
    inside[i].uc_stack.ss_sp = stacks[i].data(); inside[i].uc_stack.ss_size = stacks[i].size(); inside[i].uc_link = 0;
    makecontext(&inside[i], begin, 0);
    ended[i] = false;
  }
  memset(raw, 255, sizeof raw);  // not a number
  of_block = Barrier();
  for (auto& each : of_team) each = Barrier();
  for (auto& each : of_warp) each = Barrier();
  for (int left = THREADS; left;)
    for (int i = 0; i < THREADS; i++)
      if (!ended[i]) { current = i; threadIdx.x = i; swapcontext(&outside, &inside[i]); left -= ended[i]; }
}

// ---------------------------------------------------------------------------------------------- what a warp does together
static uint64_t given[THREADS / 32][32][8];
inline float __shfl_xor_sync(unsigned, float x, int mask) {
  const int warp = current >> 5, lane = current & 31;
  given[warp][lane][0] = bits_of(x);
  __syncwarp();
  const float y = __uint_as_float((uint32_t)given[warp][lane ^ mask][0]);
  __syncwarp();
  return y;
}
inline float of_bf16(uint32_t two, int which) { return __uint_as_float(which ? two & 0xffff0000u : two << 16); }

// ---------------------------------------------------------------------------------------------- products of a warpgroup
// An operand lies in pieces of 8 x 16 bytes. By rows, what is summed over lies along the 16 bytes; by columns, along the 8.
inline uint64_t operand(const unsigned char* p, int along_sum, int across) {
  return (uint64_t)(p - raw) | (uint64_t)along_sum << 20 | (uint64_t)across << 42;
}
inline float number_of(uint64_t operand, int by_columns, int index, int k) {
  const int start = operand & 0xfffff, along_sum = (operand >> 20) & 0x3fffff, across = operand >> 42;
  const int inside = by_columns ? (k & 7) * 16 + (index & 7) * 2 : (index & 7) * 16 + (k & 7) * 2;
  uint16_t found;
  memcpy(&found, raw + start + (index >> 3) * across + (k >> 3) * along_sum + inside, 2);
  return __uint_as_float((uint32_t)found << 16);
}
// A thread has rows g and g + 8 of its warp's 16, and columns 8 j + 2 q and 1 more.
template <int N, typename Left> void product(float (&d)[N / 2], Left left, uint64_t b, int right, int add) {
  const int lane = current & 31, row = 16 * ((current >> 5) & 3) + (lane >> 2);
  for (int i = 0; i < N / 2; i++) {
    float sum = 0;
    for (int k = 0; k < 16; k++) sum += left(row + 8 * ((i >> 1) & 1), k) * number_of(b, right, 8 * (i >> 2) + 2 * (lane & 3) + (i & 1), k);
    d[i] = add ? d[i] + sum : sum;
  }
}
template <int N, int LEFT, int RIGHT> void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {
  product<N>(d, [&](int row, int k) { return number_of(a, LEFT, row, k); }, b, RIGHT, add);
}
template <int N> void wgmma_regs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add) {
  const int warp = current >> 5, lane = current & 31;
  for (int i = 0; i < 4; i++) given[warp][lane][i] = a[i];
  __syncwarp();
  auto left = [&](int row, int k) {
    row &= 15;
    return of_bf16((uint32_t)given[warp][4 * (row & 7) + (k & 7) / 2][(row >> 3) + 2 * (k >> 3)], k & 1);
  };
  product<N>(d, left, b, 1, add);
  __syncwarp();
}
inline void wgmma_fence() {}
inline void wgmma_commit() {}
template <int N> void wgmma_wait(float (&)[N]) {}
inline void fence_async() {}

// ---------------------------------------------------------------------------------------------- what a thread does alone
inline int atomicMax(int* p, int x) { const int old = *p; *p = max(old, x); return old; }
inline uint32_t to_bf16(float x) {
  const uint32_t b = bits_of(x);
  return x != x ? 0x7fff : (b + 0x7fff + ((b >> 16) & 1)) >> 16;
}
inline uint32_t pack(float low, float high) { return to_bf16(low) | to_bf16(high) << 16; }
inline float2 unpack(uint32_t x) { return {of_bf16(x, 0), of_bf16(x, 1)}; }
inline float ex2(float x) { return exp2f(x); }
inline float2 pair(const half* p) { return {(float)p[0], (float)p[1]}; }
inline float2 pair(const float* p) { return {p[0], p[1]}; }
inline half to_half(float x) { return (half)(x != x ? x : min(65504.f, max(-65504.f, x))); }
inline void put(half* p, float2 x) { p[0] = to_half(x.x); p[1] = to_half(x.y); }
inline void put(float* p, float2 x) { p[0] = x.x; p[1] = x.y; }
inline float4 four(const half* p) { return {(float)p[0], (float)p[1], (float)p[2], (float)p[3]}; }
inline float4 four(const float* p) { return {p[0], p[1], p[2], p[3]}; }
// A barrier: bytes that are still to come, and which turn it is.
struct Bytes { int left; uint16_t expected, turn; };
static_assert(sizeof(Bytes) == 8, "as on the device");
inline void bar_init(uint64_t* b) { *b = 0; }
inline void bar_add(uint64_t* b, int bytes) {
  Bytes* x = (Bytes*)b;
  x->left += bytes;
  if (x->expected && !x->left) { x->expected = 0; x->turn ^= 1; }
}
inline void bar_expect(uint64_t* b, int bytes) { ((Bytes*)b)->expected = 1; bar_add(b, bytes); }
inline void bar_wait(uint64_t* b, int parity) { while (((Bytes*)b)->turn == parity) give_way(); }
inline void bulk(void* to, const void* from, int bytes, uint64_t* b) {
  if (((uint64_t)to | (uint64_t)from | (uint64_t)bytes) & 15) { fprintf(stderr, "a copy that is not of 16 bytes\n"); exit(1); }
  memcpy(to, from, bytes);
  bar_add(b, -bytes);
}
inline void soon(const void*, int bytes) { if (bytes <= 0 || bytes & 15) { fprintf(stderr, "a copy that is not of 16 bytes\n"); exit(1); } }

// ---------------------------------------------------------------------------------------------- arrays on disk
template <typename X> X* read_array(const char* name) {
  FILE* file = fopen(name, "rb");
  fseek(file, 0, SEEK_END);
  const size_t bytes = ftell(file);
  rewind(file);
  X* found = (X*)aligned_alloc(64, (bytes + 127) / 64 * 64);
  if (fread(found, 1, bytes, file) != bytes) exit(1);
  fclose(file);
  return found;
}
template <typename X> void write_array(const char* name, const X* from, size_t count) {
  FILE* file = fopen(name, "wb");
  fwrite(from, sizeof(X), count, file);
  fclose(file);
}
