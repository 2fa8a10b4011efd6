// What kernels for Hopper GPUs share: copies that run by themselves, and products of a warpgroup (`wgmma`: bf16 in, float32
// sums), which table_cuda.py writes out for the widths that are used. T (tokens of a step, a multiple of 16) and E (numbers in
// a row, a multiple of 4) are defined before this text.
#define LN2 0.6931471805599453f
#define TINY -1e30f
#define ROWS 64                                // of the table for each warpgroup at a time
#define GROUPS ((E + 7) / 8)                   // of 8 columns
#define KS ((E + 15) / 16)
#define WIDE (64 * ((E + 63) / 64))            // columns where they are the 64 rows of a product
#define BLOCKS (WIDE / 64)
#define MINE ((BLOCKS + 1) / 2)                // of these, for the first warpgroup; the second has the others
#define CHUNKS ((E + 255) / 256)
#define CHUNK (8 * ((GROUPS + CHUNKS - 1) / CHUNKS))  // columns of one product
#define EC (16 * KS)

#ifdef ON_CPU  // in tests
#include "gpu.h"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef __CUDACC_RTC__  // the run-time compiler has no standard headers
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
extern __shared__ __align__(128) unsigned char raw[];
__device__ __forceinline__ uint32_t at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  uint32_t y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
__device__ __forceinline__ float2 unpack(uint32_t x) { return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)); }
__device__ __forceinline__ uint32_t pack_half(float lo, float hi) {  // what float16 cannot hold is cut to its end
  uint32_t y; asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
__device__ __forceinline__ float2 pair(const half* p) { return __half22float2(*(const half2*)p); }
__device__ __forceinline__ float2 pair(const float* p) { return *(const float2*)p; }
__device__ __forceinline__ float4 four(const half* p) {
  const uint2 x = *(const uint2*)p;
  const float2 a = __half22float2(*(const half2*)&x.x), b = __half22float2(*(const half2*)&x.y);
  return make_float4(a.x, a.y, b.x, b.y);
}
__device__ __forceinline__ float4 four(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ void put(half* p, float2 x) { *(uint32_t*)p = pack_half(x.x, x.y); }
__device__ __forceinline__ void put(float* p, float2 x) { *(float2*)p = x; }
// Copies that run by themselves, and the barriers that count their bytes.
__device__ __forceinline__ void bar_init(uint64_t* b) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::"r"(at(b)) : "memory");
}
__device__ __forceinline__ void bar_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(uint64_t* b, int parity) {
  asm volatile("{\n.reg .pred p;\nL:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}" ::"r"(at(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk(void* to, const void* from, int bytes, uint64_t* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(b)) : "memory");
}
__device__ __forceinline__ void soon(const void* from, int bytes) {  // into L2
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }  // what was written is seen by products
__device__ __forceinline__ void team_sync(int team) { asm volatile("bar.sync %0, 128;" ::"r"(1 + team) : "memory"); }
// Products of a warpgroup: [64, 16] by [16, N], both in shared memory, or the left one in registers.
__device__ __forceinline__ uint64_t operand(const void* p, int along_sum, int across) {  // bytes from one piece to the next
  return (uint64_t)((at(p) & 0x3ffff) >> 4) | (uint64_t)(along_sum >> 4) << 16 | (uint64_t)(across >> 4) << 32;
}
template <int N, int LEFT, int RIGHT> __device__ void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int add);  // 1: by columns
template <int N> __device__ void wgmma_regs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add);
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int N> __device__ __forceinline__ void wgmma_wait(float (&d)[N]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
// HERE: wgmma
#endif
typedef __nv_bfloat16 bf;

// In shared memory a matrix lies in pieces of 8 rows x 16 bytes, those of the same 8 rows one after the other.
template <int COLUMNS> __device__ __forceinline__ int in_pieces(int r, int c) {
  return (r >> 3) * (COLUMNS * 16) + (c >> 3) * 128 + (r & 7) * 16 + (c & 7) * 2;
}
// The operand of a product that begins here: by rows (what is summed over lies along them), or by columns.
template <int COLUMNS> __device__ __forceinline__ uint64_t by_rows(const unsigned char* p) { return operand(p, 128, COLUMNS * 16); }
template <int COLUMNS> __device__ __forceinline__ uint64_t by_columns(const unsigned char* p) { return operand(p, COLUMNS * 16, 128); }

// Floats in the order of integers, for the largest by atomicMax.
__device__ __forceinline__ int ordered(float x) { int b = __float_as_int(x); return b < 0 ? b ^ 0x7fffffff : b; }
__device__ __forceinline__ float unordered(int b) { return __int_as_float(b < 0 ? b ^ 0x7fffffff : b); }

// [T, E] into pieces; columns beyond E are 0.
template <int COLUMNS> __device__ __forceinline__ void load_outputs(unsigned char* to, const bf* from) {
  for (int i = threadIdx.x; i < T * (COLUMNS / 4); i += 256) {
    const int r = i / (COLUMNS / 4), c = 4 * (i % (COLUMNS / 4));
    *(uint2*)(to + in_pieces<COLUMNS>(r, c)) = c < E ? *(const uint2*)(from + r * E + c) : make_uint2(0, 0);
  }
}


// Logits [64 rows, T] of a warpgroup. A thread has rows 16 * warp + g and 8 more, and tokens 8 j + 2 q and 1 more:
// s[4 j + 2 * (which row) + (which token)].
template <int COLUMNS, int OF_OUTPUTS>
__device__ __forceinline__ void multiply(const unsigned char* es, const unsigned char* os, float (&s)[T / 2]) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < KS; k++) wgmma<T, 0, 0>(s, by_rows<COLUMNS>(es + 256 * k), by_rows<OF_OUTPUTS>(os + 256 * k), k > 0);
  wgmma_commit();
  wgmma_wait(s);
}
