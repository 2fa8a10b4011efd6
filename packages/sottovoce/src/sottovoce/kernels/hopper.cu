// What kernels for Hopper GPUs share: instructions that CUDA C++ has no functions for, and how numbers are packed. hopper.py puts this text
// before the kernels, and adds the products of a warpgroup for the widths that they use.
#ifdef EMULATED  // on a CPU, in tests
#include "emulated_cuda.h"
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
__device__ __forceinline__ uint32_t pack_half(float lo, float hi) {  // saturates
  uint32_t y; asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
__device__ __forceinline__ void no_more_loads() { asm volatile("" ::: "memory"); }  // the compiler moves no load from below to above

// Bulk copies, and the barriers that count their bytes.
__device__ __forceinline__ void bar_init(uint64_t* b) { asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at(b)) : "memory"); }
__device__ __forceinline__ void bar_ready() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void bar_arrive(uint64_t* b) { asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at(b)) : "memory"); }
__device__ __forceinline__ void bar_expect(uint64_t* b, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at(b)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void bar_wait(uint64_t* b, int parity) {  // for what this block copies
  asm volatile("{\n.reg .pred p;\nL:\nmbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}" ::"r"(at(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bar_wait_for_cluster(uint64_t* b, int parity) {  // and for what others send; it waits for this thread's loads too
  asm volatile("{\n.reg .pred p;\nL:\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%0], %1;\n@p bra D;\nbra L;\nD:\n}" ::"r"(at(b)), "r"(parity) : "memory");
}
__device__ __forceinline__ void bulk_copy(void* to, const void* from, int bytes, uint64_t* b) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(at(to)), "l"(from), "r"(bytes), "r"(at(b)) : "memory");
}
__device__ __forceinline__ void prefetch(const void* from, int bytes) {  // into L2
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void fence_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }  // bulk copies and products see what was written

// Blocks of a cluster. A store into another block's shared memory counts its bytes at that block's barrier.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_leave() {  // nobody leaves while others may write here
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t in_block(uint32_t a, int rank) {
  uint32_t b; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(rank)); return b;
}
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, uint32_t x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(x), "r"(bar) : "memory");
}
__device__ __forceinline__ void send4(uint32_t to, uint32_t bar, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}

// Products of a warp: [16, 16] by [16, 8], bf16 in, float32 sums. ldmatrix loads four 8 x 8 matrices, a row from each thread's address.
__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at(p)));
}
__device__ __forceinline__ void ldmatrix_trans(uint32_t (&r)[4], const void* p) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at(p)));
}
__device__ __forceinline__ uint32_t movmatrix_trans(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// Products of a warpgroup: [64, 16] by [16, N], both in shared memory, or the left one in registers as mma has it, 16 rows a warp.
template <int N, int LEFT, int RIGHT> __device__ void wgmma(float (&d)[N / 2], uint64_t a, uint64_t b, int add);  // 0: by rows, 1: by columns
template <int N, int RIGHT> __device__ void wgmma_regs(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, int add);
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int OPEN> __device__ __forceinline__ void wgmma_wait() {  // until at most so many groups of products are open
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(OPEN) : "memory");
}
template <int N> __device__ __forceinline__ void pin(float (&d)[N]) {  // what follows reads the sums after the wait, not before
#pragma unroll
  for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> __device__ __forceinline__ void wgmma_wait(float (&d)[N]) { wgmma_wait<0>(); pin(d); }

// Parts of a block: a warpgroup, or the first two of them. A warpgroup may take more registers when another one takes fewer.
__device__ __forceinline__ void warpgroup_sync(int which) { asm volatile("bar.sync %0, 128;" ::"r"(2 + which) : "memory"); }
__device__ __forceinline__ void pair_sync() { asm volatile("bar.sync 1, 256;" ::: "memory"); }
__device__ __forceinline__ bool pair_or(bool x) {
  int y;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.b32 p, %1, 0;\nbar.red.or.pred q, 1, 256, p;\nselp.b32 %0, 1, 0, q;\n}" : "=r"(y) : "r"((int)x) : "memory");
  return y;
}
template <int N> __device__ __forceinline__ void more_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
template <int N> __device__ __forceinline__ void fewer_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
// HERE: wgmma
#endif
typedef __nv_bfloat16 bf;
#define LN2 0.6931471805599453f

// An operand of a warpgroup's product in shared memory: pieces of 8 rows of 16 bytes (PTX calls them core matrices), 128 bytes each.
// `along_sum` and `across` are the bytes from a piece to the next one along the sum and across it. By rows, a piece's rows lie along
// the sum; by columns, across it: so the same pieces serve two products.
__device__ __forceinline__ uint64_t operand(const void* p, int along_sum, int across) {
  return (uint64_t)((at(p) & 0x3ffff) >> 4) | (uint64_t)(along_sum >> 4) << 16 | (uint64_t)(across >> 4) << 32;
}

__device__ __forceinline__ float2 unpack(uint32_t x) { return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)); }
__device__ __forceinline__ float4 wide(uint2 x) {  // four float16 numbers
  const float2 a = __half22float2(*(const half2*)&x.x), b = __half22float2(*(const half2*)&x.y);
  return make_float4(a.x, a.y, b.x, b.y);
}
// Eight numbers of a row, in order, as float32.
__device__ __forceinline__ void wide8(float (&x)[8], const float* p) {
  float4 a = *(const float4*)p, b = *(const float4*)(p + 4);
  x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w; x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
}
__device__ __forceinline__ void wide8(float (&x)[8], const half* p) {
  uint4 v = *(const uint4*)p;
  float4 a = wide(make_uint2(v.x, v.y)), b = wide(make_uint2(v.z, v.w));
  x[0] = a.x; x[1] = a.y; x[2] = a.z; x[3] = a.w; x[4] = b.x; x[5] = b.y; x[6] = b.z; x[7] = b.w;
}
// Eight stored numbers as they lie in memory.
template <typename S> struct Eight;
template <> struct Eight<half> { uint4 x; };
template <> struct Eight<float> { float4 x, y; };
__device__ __forceinline__ void take8(Eight<half>& to, const half* p) { to.x = *(const uint4*)p; }
__device__ __forceinline__ void take8(Eight<float>& to, const float* p) { to.x = *(const float4*)p; to.y = *(const float4*)(p + 4); }
__device__ __forceinline__ void wide8(float (&x)[8], const Eight<half>& v) { wide8(x, (const half*)&v.x); }
__device__ __forceinline__ void wide8(float (&x)[8], const Eight<float>& v) { wide8(x, (const float*)&v.x); }
// float16 saturates.
__device__ __forceinline__ void put8(float* p, const float (&x)[8]) {
  *(float4*)p = make_float4(x[0], x[1], x[2], x[3]); *(float4*)(p + 4) = make_float4(x[4], x[5], x[6], x[7]);
}
__device__ __forceinline__ void put8(half* p, const float (&x)[8]) {
  *(uint4*)p = make_uint4(pack_half(x[0], x[1]), pack_half(x[2], x[3]), pack_half(x[4], x[5]), pack_half(x[6], x[7]));
}
__device__ __forceinline__ float quad(float x) {  // the sum over four neighbouring threads
  x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2);
}
