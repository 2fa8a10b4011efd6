// The hot loops of a simulated FedAvg round of the paper's LSTM. Sizes: 80 tokens a step (10 x 8 lanes), E = 96, H = 256.
// All products are mma.sync m16n8k16 (bf16 in, float32 sums): 80 = 5*16, 96 = 6*16, so nothing is padded.
// STORED is the kind of Δ between steps, float or half. A stored number times `scale` is Δ; before the clip it was times `unit`.
// A scale below 0 marks a user who has finished: every kernel leaves at once, and nobody reads what it would have written.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#ifdef __CUDACC_RTC__  // the run-time compiler has no standard headers
typedef unsigned char uint8_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif
typedef __nv_bfloat16 bf;
extern __shared__ __align__(128) unsigned char raw[];
#define T 80
#define E 96
#define H 256
#define EP 104  // a row of 96 in shared memory, padded: rows start 13 * 16 bytes apart, so ldmatrix has no conflicts
#define AHEAD 32  // about as many users are on the device at a time
#define LN2 0.6931471805599453f
#define LOG2E 1.4426950408889634f

__device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
               : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void ldsm4(uint32_t (&r)[4], const void* p) {
  uint32_t a = (uint32_t)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
__device__ __forceinline__ void ldsm4t(uint32_t (&r)[4], const void* p) {
  uint32_t a = (uint32_t)__cvta_generic_to_shared(p);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(a));
}
__device__ __forceinline__ uint32_t movm(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}
__device__ __forceinline__ float ex2(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
__device__ __forceinline__ uint32_t pack(float lo, float hi) {
  uint32_t y; asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
__device__ __forceinline__ float2 unpack(uint32_t x) { return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)); }
__device__ __forceinline__ float quad(float x) {
  x += __shfl_xor_sync(~0u, x, 1); return x + __shfl_xor_sync(~0u, x, 2);
}
__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + ex2(-LOG2E * x)); }
__device__ __forceinline__ float tanh_(float x) { return 2.f * __fdividef(1.f, 1.f + ex2(-2.f * LOG2E * x)) - 1.f; }

// Four stored numbers: as they lie in memory, and as float32.
template <typename S> struct Four;
template <> struct Four<float> { typedef float4 type; };
template <> struct Four<half> { typedef uint2 type; };
__device__ __forceinline__ float4 wide(float4 x) { return x; }
__device__ __forceinline__ float4 wide(uint2 x) {
  float2 a = __half22float2(*(half2*)&x.x), b = __half22float2(*(half2*)&x.y);
  return make_float4(a.x, a.y, b.x, b.y);
}
template <typename S> __device__ __forceinline__ typename Four<S>::type four(const S* p) { return *(const typename Four<S>::type*)p; }
__device__ __forceinline__ float4 times(float s, float4 x) { return make_float4(s * x.x, s * x.y, s * x.z, s * x.w); }
__device__ __forceinline__ float squares(float4 x) { return (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w); }
// Writes four numbers, in units already; their sum of squares. What float16 cannot hold is cut to its end.
__device__ __forceinline__ float put4(float* p, float4 x) { *(float4*)p = x; return squares(x); }
__device__ __forceinline__ uint32_t pack_half(float lo, float hi) {
  uint32_t y; asm("cvt.rn.satfinite.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(hi), "f"(lo)); return y;
}
__device__ __forceinline__ float put4(half* p, float4 x) {
  *(uint2*)p = make_uint2(pack_half(x.x, x.y), pack_half(x.z, x.w)); return squares(x);
}
// A thread's four numbers of two neighbouring 8-column tiles are columns 4q..4q+3 of 16, so that it can read and write 16
// bytes at once: in shared memory the columns of the other operand lie in that order. w: which pair of columns.
__device__ __forceinline__ int place(int w) { return (w & ~7) + 4 * (w & 1) + ((w & 7) >> 1); }
__device__ __forceinline__ void put_row(bf* row, int c, uint4 x) {  // columns 8c..8c+7
  uint32_t* to = (uint32_t*)row;
  to[place(4 * c)] = x.x; to[place(4 * c + 1)] = x.y; to[place(4 * c + 2)] = x.z; to[place(4 * c + 3)] = x.w;
}

// ------------------------------------------------------------------------------------------------- copies that run by themselves
__device__ __forceinline__ uint32_t at(const void* p) { return (uint32_t)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void bar_init(uint64_t* b, int count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at(b)), "r"(count) : "memory"); }
__device__ __forceinline__ void bar_ready() { asm volatile("fence.mbarrier_init.release.cluster;\nfence.proxy.async.shared::cta;" ::: "memory"); }
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

// ------------------------------------------------------------------------------------------------- softmax, pass A
// grid (splits, users), 160 threads: a warp has 16 tokens and sees every row; tiles of 80 rows. meta: V, rows a split.
template <typename S>
__device__ __forceinline__ void head_a(const bf* out, const bf* theta, const S* delta, const float* scale_, const float* offset,
                                       const int* meta, float* sums, float* means) {
  S* ds = (S*)raw;                       // [80][E]: the next tile of delta
  bf* ts = (bf*)(raw + 80 * E * sizeof(S));  // [80][E]: and of theta
  bf* es = ts + 80 * E;                  // [80][EP]: normalised rows
  __shared__ __align__(8) uint64_t bar;
  const int user = blockIdx.y, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  const int V = meta[0], rows = meta[1];
  const int first = blockIdx.x * rows, last = min(V, first + rows), tiles = (last - first + 79) / 80;
  const float scale = scale_[user];
  if (scale < 0) return;
  if (tid == 0) { bar_init(&bar, 1); bar_ready(); }
  __syncthreads();
  auto fetch = [&](int t) {
    const int v = first + 80 * t, n = min(80, last - v);
    bar_expect(&bar, n * E * (int)(sizeof(S) + 2));
    bulk(ds, delta + ((size_t)user * V + v) * E, n * E * (int)sizeof(S), &bar);
    bulk(ts, theta + (size_t)v * E, n * E * 2, &bar);
  };
  if (tid == 0) fetch(0);
  uint32_t a[6][4];
  const bf* o = out + ((size_t)user * T + 16 * warp + g) * E + 2 * q;
#pragma unroll
  for (int s = 0; s < 6; s++) {
    a[s][0] = *(const uint32_t*)(o + 16 * s); a[s][1] = *(const uint32_t*)(o + 8 * E + 16 * s);
    a[s][2] = *(const uint32_t*)(o + 16 * s + 8); a[s][3] = *(const uint32_t*)(o + 8 * E + 16 * s + 8);
  }
  const float oa = -offset[user * T + 16 * warp + g], ob = -offset[user * T + 16 * warp + g + 8];
  float acc[12][4] = {};
  float la = 0, lb = 0;
  const int l8 = lane & 7, prow = 16 * warp + (lane >> 3);
#pragma unroll 1
  for (int t = 0; t < tiles; t++) {
    const int v0 = first + 80 * t, n = min(80, last - v0);
    bar_wait(&bar, t & 1);
#pragma unroll
    for (int p = 0; p < 4; p++) {
      const int r = prow + 4 * p;
      float4 e[3]; float ss = 0;
#pragma unroll
      for (int j = 0; j < 3; j++) {
        float4 x = wide(four<S>(ds + r * E + 4 * l8 + 32 * j));
        uint2 th = *(const uint2*)(ts + r * E + 4 * l8 + 32 * j);
        float2 t0 = unpack(th.x), t1 = unpack(th.y);
        e[j] = make_float4(fmaf(scale, x.x, t0.x), fmaf(scale, x.y, t0.y), fmaf(scale, x.z, t1.x), fmaf(scale, x.w, t1.y));
        ss += squares(e[j]);
      }
      ss += __shfl_xor_sync(~0u, ss, 1); ss += __shfl_xor_sync(~0u, ss, 2); ss += __shfl_xor_sync(~0u, ss, 4);
      const float k = rsqrtf(fmaxf(ss, 1e-24f));
#pragma unroll
      for (int j = 0; j < 3; j++)
        *(uint2*)(es + r * EP + 4 * l8 + 32 * j) =
            r < n ? make_uint2(pack(e[j].x * k, e[j].y * k), pack(e[j].z * k, e[j].w * k)) : make_uint2(0, 0);
    }
    __syncthreads();
    if (tid == 0 && t + 1 < tiles) fetch(t + 1);
    auto chunk = [&](int c, bool partial) {
      const bf* base = es + 16 * c * EP;
      float s0[4] = {oa, oa, ob, ob}, s1[4] = {oa, oa, ob, ob};
#pragma unroll
      for (int k = 0; k < 3; k++) {
        uint32_t r0[4], r1[4];
        ldsm4(r0, base + (lane & 7) * EP + 32 * k + 8 * (lane >> 3));
        ldsm4(r1, base + (8 + (lane & 7)) * EP + 32 * k + 8 * (lane >> 3));
        mma(s0, a[2 * k][0], a[2 * k][1], a[2 * k][2], a[2 * k][3], r0[0], r0[1]);
        mma(s1, a[2 * k][0], a[2 * k][1], a[2 * k][2], a[2 * k][3], r1[0], r1[1]);
        mma(s0, a[2 * k + 1][0], a[2 * k + 1][1], a[2 * k + 1][2], a[2 * k + 1][3], r0[2], r0[3]);
        mma(s1, a[2 * k + 1][0], a[2 * k + 1][1], a[2 * k + 1][2], a[2 * k + 1][3], r1[2], r1[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) { s0[i] = ex2(s0[i]); s1[i] = ex2(s1[i]); }
      if (partial) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (16 * c + 2 * q + (i & 1) >= n) s0[i] = 0;
          if (16 * c + 8 + 2 * q + (i & 1) >= n) s1[i] = 0;
        }
      }
      la += (s0[0] + s0[1]) + (s1[0] + s1[1]); lb += (s0[2] + s0[3]) + (s1[2] + s1[3]);
      uint32_t p0 = pack(s0[0], s0[1]), p1 = pack(s0[2], s0[3]), p2 = pack(s1[0], s1[1]), p3 = pack(s1[2], s1[3]);
#pragma unroll
      for (int m = 0; m < 6; m++) {
        uint32_t r[4];
        ldsm4t(r, base + ((lane & 7) + ((lane >> 3) & 1) * 8) * EP + 16 * m + (lane >> 4) * 8);
        mma(acc[2 * m], p0, p1, p2, p3, r[0], r[1]);
        mma(acc[2 * m + 1], p0, p1, p2, p3, r[2], r[3]);
      }
    };
    if (n == 80) {
#pragma unroll
      for (int c = 0; c < 5; c++) chunk(c, false);
    } else {
#pragma unroll 1
      for (int c = 0; 16 * c < n; c++) chunk(c, true);
    }
    __syncthreads();
  }
  la = quad(la); lb = quad(lb);
  const int ra = 16 * warp + g;
  const size_t place_ = (size_t)user * gridDim.x + blockIdx.x;
  float* m = means + place_ * T * E;
#pragma unroll
  for (int n = 0; n < 12; n++) {
    *(float2*)(m + ra * E + 8 * n + 2 * q) = make_float2(acc[n][0], acc[n][1]);
    *(float2*)(m + (ra + 8) * E + 8 * n + 2 * q) = make_float2(acc[n][2], acc[n][3]);
  }
  if (q == 0) { sums[place_ * T + ra] = la; sums[place_ * T + ra + 8] = lb; }
}

// ------------------------------------------------------------------------------------------------- softmax, pass B
// grid (groups, users), 128 threads: a warp takes 16 rows of the table at a time. meta: V, rows a group. rate: eta.
template <typename S>
__device__ __forceinline__ void head_b(const bf* out, const bf* came, const bf* theta, const S* delta, const float* scale_,
                                       const float* level, const float* share, const int* targets, const int* inputs, const int* meta,
                                       const float* rate, const float* unit_, S* fresh, float* square) {
  __shared__ __align__(16) bf hs[T * EP];
  __shared__ __align__(16) float lv[T], sh[T];
  __shared__ __align__(16) int tg[T], in[T];
  __shared__ float red[4];
  // The next 16 rows of each warp. Rows are padded so that reading them has no bank conflicts.
  constexpr int DP = sizeof(S) == 4 ? 448 : 224, TP = 224;
  __shared__ __align__(8) uint64_t bars[4];
  const int user = blockIdx.y, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  unsigned char* ds = raw + warp * 16 * (DP + TP);
  unsigned char* ts = ds + 16 * DP;
  uint64_t* bar = bars + warp;
  const int V = meta[0], rows = meta[1], first = blockIdx.x * rows, last = min(V, first + rows);
  const float scale = scale_[user], unit = unit_[user], eta = rate[0] / unit, keep = scale / unit;
  if (scale < 0) return;
  if (lane == 0) { bar_init(bar, 1); bar_ready(); }
  __syncwarp();
  auto fetch = [&](int v0) {  // each lane copies one row
    const int n = min(16, last - v0), r = lane & 15;
    if (lane == 0) bar_expect(bar, n * E * (int)(sizeof(S) + 2));
    __syncwarp();
    if (r < n) {
      if (lane < 16) bulk(ds + r * DP, delta + ((size_t)user * V + v0 + r) * E, E * (int)sizeof(S), bar);
      else bulk(ts + r * TP, theta + (size_t)(v0 + r) * E, E * 2, bar);
    }
  };
  int phase = 0;
  if (first + warp * 16 < last) fetch(first + warp * 16);
  for (int i = tid; i < T * 12; i += 128) {
    int r = i / 12, c = i % 12;
    put_row(hs + r * EP, c, *(const uint4*)(out + ((size_t)user * T + r) * E + 8 * c));
  }
  if (tid < T) {
    // share * 2^(score - level) = 2^(score - level + log2 share): log2 0 is -inf, and 2^-inf is 0.
    sh[tid] = share[user * T + tid] * LN2; lv[tid] = log2f(sh[tid]) - level[user * T + tid];
    tg[tid] = targets[user * T + tid]; in[tid] = inputs[user * T + tid];
  }
  __syncthreads();
  float sq = 0;
#pragma unroll 1
  for (int v0 = first + warp * 16; v0 < last; v0 += 64) {
    const int va = v0 + g, vb = va + 8, wa = min(va, V - 1), wb = min(vb, V - 1);
    const size_t pa = ((size_t)user * V + wa) * E + 4 * q, pb = ((size_t)user * V + wb) * E + 4 * q;
    typename Four<S>::type ca[6], cb[6];
    uint32_t ea[12], eb[12];
    bar_wait(bar, phase); phase ^= 1;
#pragma unroll
    for (int n = 0; n < 6; n++) {
      ca[n] = four<S>((const S*)(ds + g * DP) + 4 * q + 16 * n); cb[n] = four<S>((const S*)(ds + (g + 8) * DP) + 4 * q + 16 * n);
    }
#pragma unroll
    for (int n = 0; n < 6; n++) {
      uint2 x = *(const uint2*)(ts + g * TP + 8 * q + 32 * n), y = *(const uint2*)(ts + (g + 8) * TP + 8 * q + 32 * n);
      ea[2 * n] = x.x; ea[2 * n + 1] = x.y; eb[2 * n] = y.x; eb[2 * n + 1] = y.y;
    }
    __syncwarp();
    if (v0 + 64 < last) fetch(v0 + 64);
    float sa = 0, sb = 0;
#pragma unroll
    for (int n = 0; n < 6; n++) {
      float4 c = times(scale, wide(ca[n])), d = times(scale, wide(cb[n]));
      float2 x = unpack(ea[2 * n]), z = unpack(ea[2 * n + 1]), y = unpack(eb[2 * n]), w = unpack(eb[2 * n + 1]);
      sa += squares(make_float4(x.x + c.x, x.y + c.y, z.x + c.z, z.y + c.w));
      sb += squares(make_float4(y.x + d.x, y.y + d.y, w.x + d.z, w.y + d.w));
    }
    const float ra = rsqrtf(fmaxf(quad(sa), 1e-24f)), rb = rsqrtf(fmaxf(quad(sb), 1e-24f));
#pragma unroll
    for (int n = 0; n < 6; n++) {
      float4 c = times(scale, wide(ca[n])), d = times(scale, wide(cb[n]));
      float2 x = unpack(ea[2 * n]), z = unpack(ea[2 * n + 1]), y = unpack(eb[2 * n]), w = unpack(eb[2 * n + 1]);
      ea[2 * n] = pack((x.x + c.x) * ra, (x.y + c.y) * ra); ea[2 * n + 1] = pack((z.x + c.z) * ra, (z.y + c.w) * ra);
      eb[2 * n] = pack((y.x + d.x) * rb, (y.y + d.y) * rb); eb[2 * n + 1] = pack((w.x + d.z) * rb, (w.y + d.w) * rb);
    }
    float sl[12][4] = {};
#pragma unroll
    for (int c = 0; c < 5; c++) {
      const bf* base = hs + 16 * c * EP;
      const int t = 16 * c + 2 * q;
      float2 l0 = *(const float2*)(lv + t), l1 = *(const float2*)(lv + t + 8);
      // Four sums of three products, not two of six: a product waits some 30 cycles for the one before.
      float s0[4] = {l0.x, l0.y, l0.x, l0.y}, s1[4] = {l1.x, l1.y, l1.x, l1.y}, u0[4] = {}, u1[4] = {};
#pragma unroll
      for (int k = 0; k < 3; k++) {
        uint32_t r0[4], r1[4];
        ldsm4(r0, base + (lane & 7) * EP + 32 * k + 8 * (lane >> 3));
        ldsm4(r1, base + (8 + (lane & 7)) * EP + 32 * k + 8 * (lane >> 3));
        mma(s0, ea[4 * k], eb[4 * k], ea[4 * k + 1], eb[4 * k + 1], r0[0], r0[1]);
        mma(s1, ea[4 * k], eb[4 * k], ea[4 * k + 1], eb[4 * k + 1], r1[0], r1[1]);
        mma(u0, ea[4 * k + 2], eb[4 * k + 2], ea[4 * k + 3], eb[4 * k + 3], r0[2], r0[3]);
        mma(u1, ea[4 * k + 2], eb[4 * k + 2], ea[4 * k + 3], eb[4 * k + 3], r1[2], r1[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) { s0[i] = ex2(s0[i] + u0[i]); s1[i] = ex2(s1[i] + u1[i]); }
      uint32_t p0 = pack(s0[0], s0[1]), p1 = pack(s0[2], s0[3]), p2 = pack(s1[0], s1[1]), p3 = pack(s1[2], s1[3]);
#pragma unroll
      for (int n = 0; n < 6; n++) {
        uint32_t r[4];
        ldsm4t(r, base + ((lane & 7) + ((lane >> 3) & 1) * 8) * EP + 16 * n + (lane >> 4) * 8);
        mma(sl[2 * n], p0, p1, p2, p3, r[0], r[1]);
        mma(sl[2 * n + 1], p0, p1, p2, p3, r[2], r[3]);
      }
    }
    // Targets and words read that are in these rows: rare, so one at a time.
#pragma unroll 1
    for (int w = 0; w < T; w += 32) {
      const int i = w + lane;
      unsigned read = __ballot_sync(~0u, i < T && (unsigned)(in[i < T ? i : 0] - v0) < 16u);
      unsigned want = __ballot_sync(~0u, i < T && (unsigned)(tg[i < T ? i : 0] - v0) < 16u);
      while (read | want) {
        const bool first_ = read != 0;
        const int t = w + __ffs(first_ ? read : want) - 1;
        if (first_) read &= read - 1; else want &= want - 1;
        const int r = (first_ ? in[t] : tg[t]) - v0;
        if (g == (r & 7)) {
          const bf* p = came + ((size_t)user * T + t) * E + 4 * q;
          const uint32_t* h = (const uint32_t*)(hs + t * EP) + q;
          const float k = -sh[t];
#pragma unroll
          for (int n = 0; n < 6; n++) {
            float2 x, y;
            if (first_) { uint2 u = *(const uint2*)(p + 16 * n); x = unpack(u.x); y = unpack(u.y); }
            else { x = unpack(h[8 * n]); y = unpack(h[8 * n + 4]); x.x *= k; x.y *= k; y.x *= k; y.y *= k; }
            if (r < 8) { sl[2 * n][0] += x.x; sl[2 * n][1] += x.y; sl[2 * n + 1][0] += y.x; sl[2 * n + 1][1] += y.y; }
            else { sl[2 * n][2] += x.x; sl[2 * n][3] += x.y; sl[2 * n + 1][2] += y.x; sl[2 * n + 1][3] += y.y; }
          }
        }
      }
    }
    float da = 0, db = 0;
#pragma unroll
    for (int n = 0; n < 12; n++) {
      float2 x = unpack(ea[n]), y = unpack(eb[n]);
      da += x.x * sl[n][0] + x.y * sl[n][1]; db += y.x * sl[n][2] + y.y * sl[n][3];
    }
    da = quad(da); db = quad(db);
    const float fa = eta * ra, fb = eta * rb;
#pragma unroll
    for (int n = 0; n < 6; n++) {
      float2 x = unpack(ea[2 * n]), z = unpack(ea[2 * n + 1]), y = unpack(eb[2 * n]), w = unpack(eb[2 * n + 1]);
      float(&s)[4] = sl[2 * n]; float(&r)[4] = sl[2 * n + 1];
      float4 c = times(keep, wide(ca[n])), d = times(keep, wide(cb[n]));
      if (va < last)
        sq += put4(fresh + pa + 16 * n, make_float4(c.x - fa * (s[0] - x.x * da), c.y - fa * (s[1] - x.y * da),
                                                    c.z - fa * (r[0] - z.x * da), c.w - fa * (r[1] - z.y * da)));
      if (vb < last)
        sq += put4(fresh + pb + 16 * n, make_float4(d.x - fb * (s[2] - y.x * db), d.y - fb * (s[3] - y.y * db),
                                                    d.z - fb * (r[2] - w.x * db), d.w - fb * (r[3] - w.y * db)));
    }
  }
#pragma unroll
  for (int s = 16; s; s >>= 1) sq += __shfl_xor_sync(~0u, sq, s);
  if (lane == 0) red[warp] = sq;
  __syncthreads();
  if (tid == 0) square[(size_t)user * gridDim.x + blockIdx.x] = ((red[0] + red[1]) + (red[2] + red[3])) * (unit * unit);
}

// ------------------------------------------------------------------------------------------------- SGD of a plain weight
// fresh = scale * delta - eta * leftT right. grid (R / 128, users), 256 threads, left [80, R], right [80, K]; a scale a block.
template <typename S, int K>
__device__ __forceinline__ void sgd(const bf* left, const bf* right, const S* delta, const float* scale_, const float* rate, const float* unit_, S* fresh, float* square) {
  constexpr int LP = 136, KP = K + 8;
  bf* ls = (bf*)raw; bf* rs = ls + T * LP;
  __shared__ float red[8];
  const int user = blockIdx.y, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3, R = gridDim.x * 128;
  const float unit = unit_[user], scale = scale_[user * gridDim.x + blockIdx.x] / unit, eta = rate[0] / unit;
  if (scale < 0) return;
  for (int i = tid; i < T * 16; i += 256)
    *(uint4*)(ls + (i >> 4) * LP + 8 * (i & 15)) = *(const uint4*)(left + ((size_t)user * T + (i >> 4)) * R + blockIdx.x * 128 + 8 * (i & 15));
  for (int i = tid; i < T * (K / 8); i += 256) {
    int r = i / (K / 8), c = i % (K / 8);
    put_row(rs + r * KP, c, *(const uint4*)(right + ((size_t)user * T + r) * K + 8 * c));
  }
  __syncthreads();
  uint32_t a[5][4];
#pragma unroll
  for (int k = 0; k < 5; k++) ldsm4t(a[k], ls + (16 * k + (lane & 7) + (lane >> 4) * 8) * LP + 16 * warp + ((lane >> 3) & 1) * 8);
  const size_t pa = ((size_t)user * R + blockIdx.x * 128 + 16 * warp + g) * K + 4 * q, pb = pa + 8 * K;
  float sq = 0;
#pragma unroll 2
  for (int c = 0; c < K / 32; c++) {
    float4 da[2], db[2];
#pragma unroll
    for (int n = 0; n < 2; n++) { da[n] = wide(four<S>(delta + pa + 32 * c + 16 * n)); db[n] = wide(four<S>(delta + pb + 32 * c + 16 * n)); }
    float acc[4][4] = {};
#pragma unroll
    for (int k = 0; k < 5; k++)
#pragma unroll
      for (int n = 0; n < 2; n++) {
        uint32_t r[4];
        ldsm4t(r, rs + (16 * k + (lane & 7) + ((lane >> 3) & 1) * 8) * KP + 32 * c + 16 * n + (lane >> 4) * 8);
        mma(acc[2 * n], a[k][0], a[k][1], a[k][2], a[k][3], r[0], r[1]);
        mma(acc[2 * n + 1], a[k][0], a[k][1], a[k][2], a[k][3], r[2], r[3]);
      }
#pragma unroll
    for (int n = 0; n < 2; n++) {
      float(&s)[4] = acc[2 * n]; float(&r)[4] = acc[2 * n + 1];
      sq += put4(fresh + pa + 32 * c + 16 * n, make_float4(scale * da[n].x - eta * s[0], scale * da[n].y - eta * s[1],
                                                           scale * da[n].z - eta * r[0], scale * da[n].w - eta * r[1]));
      sq += put4(fresh + pb + 32 * c + 16 * n, make_float4(scale * db[n].x - eta * s[2], scale * db[n].y - eta * s[3],
                                                           scale * db[n].z - eta * r[2], scale * db[n].w - eta * r[3]));
    }
  }
#pragma unroll
  for (int s = 16; s; s >>= 1) sq += __shfl_xor_sync(~0u, sq, s);
  if (lane == 0) red[warp] = sq;
  __syncthreads();
  if (tid == 0) { float x = 0; for (int i = 0; i < 8; i++) x += red[i]; square[(size_t)user * gridDim.x + blockIdx.x] = x * (unit * unit); }
}

// ------------------------------------------------------------------------------------------------- recurrence
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ void cluster_leave() {  // nobody leaves while others may write here
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t in_block(uint32_t a, int rank) {
  uint32_t b; asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(b) : "r"(a), "r"(rank)); return b;
}
// A store into another block's shared memory that counts its bytes at that block's barrier.
__device__ __forceinline__ void send(uint32_t to, uint32_t bar, uint32_t x) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(to), "r"(x), "r"(bar) : "memory");
}
__device__ __forceinline__ void send4(uint32_t to, uint32_t bar, uint32_t x, uint32_t y, uint32_t z, uint32_t w) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1,%2,%3,%4}, [%5];" ::"r"(to), "r"(x), "r"(y), "r"(z), "r"(w), "r"(bar) : "memory");
}

// Eight recurrent weights in a row: theta + scale * delta, rounded to bf16.
__device__ __forceinline__ uint4 blend(const float* d, const bf* th, float s) {
  uint4 t = *(const uint4*)th; float4 x = *(const float4*)d, y = *(const float4*)(d + 4);
  float2 a = unpack(t.x), b = unpack(t.y), c = unpack(t.z), e = unpack(t.w);
  return make_uint4(pack(fmaf(s, x.x, a.x), fmaf(s, x.y, a.y)), pack(fmaf(s, x.z, b.x), fmaf(s, x.w, b.y)),
                    pack(fmaf(s, y.x, c.x), fmaf(s, y.y, c.y)), pack(fmaf(s, y.z, e.x), fmaf(s, y.w, e.y)));
}
__device__ __forceinline__ uint4 blend(const half* d, const bf* th, float s) {
  uint4 t = *(const uint4*)th, v = *(const uint4*)d;
  float4 x = wide(make_uint2(v.x, v.y)), y = wide(make_uint2(v.z, v.w));
  float2 a = unpack(t.x), b = unpack(t.y), c = unpack(t.z), e = unpack(t.w);
  return make_uint4(pack(fmaf(s, x.x, a.x), fmaf(s, x.y, a.y)), pack(fmaf(s, x.z, b.x), fmaf(s, x.w, b.y)),
                    pack(fmaf(s, y.x, c.x), fmaf(s, y.y, c.y)), pack(fmaf(s, y.z, e.x), fmaf(s, y.w, e.y)));
}

// grid (4, users), clusters of 4, 256 threads. A block owns 64 hidden units; its 256 x 256 weights live in registers.
// Blocks send each other their part of the state. Two buffers are enough: a block sends step t + 1 only after it has all
// of step t, and every block sends its part of step t only after all its warps have read step t - 1.
template <typename S>
__device__ __forceinline__ void recur_f(const bf* words, const float* bias, const bf* theta, const S* delta, const float* scale_, const bf* hidden, const float* cell, bf* gates, float* cells, bf* hiddens) {
  __shared__ __align__(16) bf hb[2][8 * 288];
  __shared__ __align__(16) float zs[4][8][68];
  __shared__ __align__(8) uint64_t bars[2];
  const int user = blockIdx.y, rank = blockIdx.x, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  uint4 a[2][8][2];
  const S* w = delta + (size_t)user * 1024 * H;
  const float scale = scale_[4 * user + (warp >> 1)];  // of the gate that this warp's 32 rows belong to
  if (scale < 0) return;  // all four blocks of the cluster: it has one user
#pragma unroll
  for (int m = 0; m < 2; m++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      int lr = 32 * warp + 16 * m + g + 8 * h;
      const size_t p = (size_t)((lr >> 6) * 256 + 64 * rank + (lr & 63)) * H + 8 * q;
#pragma unroll
      for (int j = 0; j < 8; j++) a[m][j][h] = blend(w + p + 32 * j, theta + p + 32 * j, scale);
      asm volatile("" ::: "memory");  // not all loads at once: there are no registers for them
    }
  if (tid == 0) { bar_init(&bars[0], 1); bar_init(&bars[1], 1); bar_ready(); bar_expect(&bars[0], 4096); bar_expect(&bars[1], 4096); }
  *(uint4*)(&hb[0][warp * 288 + 8 * lane]) = *(const uint4*)(hidden + ((size_t)user * 8 + warp) * H + 8 * lane);
  const int unit = 64 * rank + 2 * lane;  // this thread's two units of lane `warp`
  float2 c = *(const float2*)(cell + ((size_t)user * 8 + warp) * H + unit);
  bf* hd = hiddens + ((size_t)user * 11 * 8 + warp) * H + unit;
  float* cd = cells + ((size_t)user * 11 * 8 + warp) * H + unit;
  const bf* wd = words + ((size_t)user * T + warp) * 1024 + unit;
  bf* gd = gates + ((size_t)user * T + warp) * 1024 + unit;
  *(float2*)cd = c;
  *(uint32_t*)hd = *(const uint32_t*)(hidden + ((size_t)user * 8 + warp) * H + unit);
  if (tid < 4 && user + AHEAD < gridDim.y) soon(w + (size_t)AHEAD * 1024 * H + (size_t)(256 * tid + 64 * rank) * H, 64 * H * (int)sizeof(S));
  uint32_t wz[4], far[4], farbar[4];
  float2 bs[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    bs[i] = *(const float2*)(bias + (size_t)user * 1024 + 256 * i + unit);
    wz[i] = *(const uint32_t*)(wd + 256 * i);
    far[i] = in_block(at(&hb[0][warp * 288 + unit]), i); farbar[i] = in_block(at(&bars[0]), i);
  }
  cluster_sync();
#pragma unroll 1
  for (int t = 0; t < 10; t++) {
    if (t > 0) {  // buffer 1 holds steps 1, 3, ..; buffer 0 steps 2, 4, .. (step 0 was read from memory)
      bar_wait(&bars[t & 1], ((t - 1) >> 1) & 1);
      if (tid == 0) bar_expect(&bars[t & 1], 4096);
    }
    float acc[2][2][4] = {};
    const bf* hp = &hb[t & 1][g * 288 + 8 * q];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      uint4 b = *(const uint4*)(hp + 32 * j);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        mma(acc[m][0], a[m][j][0].x, a[m][j][1].x, a[m][j][0].y, a[m][j][1].y, b.x, b.y);
        mma(acc[m][1], a[m][j][0].z, a[m][j][1].z, a[m][j][0].w, a[m][j][1].w, b.z, b.w);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
      int lr = 32 * warp + 16 * m + g, gate = lr >> 6, u = lr & 63;
      zs[gate][2 * q][u] = acc[m][0][0] + acc[m][1][0]; zs[gate][2 * q + 1][u] = acc[m][0][1] + acc[m][1][1];
      zs[gate][2 * q][u + 8] = acc[m][0][2] + acc[m][1][2]; zs[gate][2 * q + 1][u + 8] = acc[m][0][3] + acc[m][1][3];
    }
    __syncthreads();
    float2 z[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      float2 x = unpack(wz[i]), y = *(const float2*)&zs[i][warp][2 * lane];
      z[i] = make_float2(x.x + bs[i].x + y.x, x.y + bs[i].y + y.y);
    }
    float2 gi = make_float2(sigmoid(z[0].x), sigmoid(z[0].y)), gf = make_float2(sigmoid(z[1].x), sigmoid(z[1].y));
    float2 gg = make_float2(tanh_(z[2].x), tanh_(z[2].y)), go = make_float2(sigmoid(z[3].x), sigmoid(z[3].y));
    c.x = gf.x * c.x + gi.x * gg.x; c.y = gf.y * c.y + gi.y * gg.y;
    uint32_t h = pack(go.x * tanh_(c.x), go.y * tanh_(c.y));
    if (t < 9) {
      const int b = (t + 1) & 1;
#pragma unroll
      for (int i = 0; i < 4; i++) send(far[i] + b * 8 * 288 * 2, farbar[i] + 8 * b, h);
#pragma unroll
      for (int i = 0; i < 4; i++) wz[i] = *(const uint32_t*)(wd + (t + 1) * 8192 + 256 * i);
    }
    *(uint32_t*)(hd + (t + 1) * 2048) = h;
    *(float2*)(cd + (t + 1) * 2048) = c;
    *(uint32_t*)(gd + t * 8192) = pack(gi.x, gi.y); *(uint32_t*)(gd + t * 8192 + 256) = pack(gf.x, gf.y);
    *(uint32_t*)(gd + t * 8192 + 512) = pack(gg.x, gg.y); *(uint32_t*)(gd + t * 8192 + 768) = pack(go.x, go.y);
  }
  cluster_leave();
}

// The way back. The sum over 4 x 256 gates runs in the order (pair of units, gate), so that a thread sends 16 bytes.
template <typename S>
__device__ __forceinline__ void recur_b(const bf* above, const bf* gates, const float* cells, const bf* theta, const S* delta, const float* scale_, bf* slopes) {
  __shared__ __align__(16) bf zb[2][8 * 1056];
  __shared__ __align__(16) float part[4][8][68];
  __shared__ __align__(8) uint64_t bars[2];
  const int user = blockIdx.y, rank = blockIdx.x, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  const int uh = warp & 1, kq = warp >> 1;  // which 32 of the block's units come out; which 64 units' gates go in
  uint32_t a[8][4][4];
  const S* w = delta + (size_t)user * 1024 * H;
  const float4 scales = *(const float4*)(scale_ + 4 * user);  // a gate each
  const float scale[4] = {scales.x, scales.y, scales.z, scales.w};
  if (scale[0] < 0) return;  // all four blocks of the cluster: it has one user
#pragma unroll
  for (int s = 0; s < 8; s++)
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const size_t p = (size_t)(256 * j + 64 * kq + 8 * s + g) * H + 64 * rank + 32 * uh + 8 * q;
      uint4 x = blend(w + p, theta + p, scale[j]);
      a[s][j][0] = x.x; a[s][j][1] = x.y; a[s][j][2] = x.z; a[s][j][3] = x.w;
    }
  if (tid == 0) { bar_init(&bars[0], 1); bar_init(&bars[1], 1); bar_ready(); bar_expect(&bars[0], 16384); bar_expect(&bars[1], 16384); }
#pragma unroll
  for (int s = 0; s < 8; s++)
#pragma unroll
    for (int j = 0; j < 4; j++)
#pragma unroll
      for (int c = 0; c < 4; c++) a[s][j][c] = movm(a[s][j][c]);
  if (tid < 4 && user + AHEAD < gridDim.y) soon(w + (size_t)AHEAD * 1024 * H + (size_t)(256 * rank + 64 * tid) * H, 64 * H * (int)sizeof(S));
  const int unit = 64 * rank + 2 * lane;
  const bf* gd = gates + ((size_t)user * T + warp) * 1024 + unit;
  const float* cd = cells + ((size_t)user * 11 * 8 + warp) * H + unit;
  const bf* ad = above + ((size_t)user * T + warp) * H + unit;
  bf* sd = slopes + ((size_t)user * T + warp) * 1024 + unit;
  float2 dh = make_float2(0, 0), dc = make_float2(0, 0);
  uint32_t gz[4], up, far[4], farbar[4];
  float2 cn = *(const float2*)(cd + 10 * 2048), cp = *(const float2*)(cd + 9 * 2048);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    gz[i] = *(const uint32_t*)(gd + 9 * 8192 + 256 * i);
    far[i] = in_block(at(&zb[0][warp * 1056 + 4 * unit]), i); farbar[i] = in_block(at(&bars[0]), i);
  }
  up = *(const uint32_t*)(ad + 9 * 2048);
  cluster_sync();
#pragma unroll 1
  for (int n = 0; n < 10; n++) {
    const int t = 9 - n, b = n & 1;
    float2 i = unpack(gz[0]), f = unpack(gz[1]), k = unpack(gz[2]), o = unpack(gz[3]), x = unpack(up);
    dh.x += x.x; dh.y += x.y;
    float2 tc = make_float2(tanh_(cn.x), tanh_(cn.y));
    dc.x += dh.x * o.x * (1 - tc.x * tc.x); dc.y += dh.y * o.y * (1 - tc.y * tc.y);
    uint32_t z0 = pack(dc.x * k.x * i.x * (1 - i.x), dc.y * k.y * i.y * (1 - i.y));
    uint32_t z1 = pack(dc.x * cp.x * f.x * (1 - f.x), dc.y * cp.y * f.y * (1 - f.y));
    uint32_t z2 = pack(dc.x * i.x * (1 - k.x * k.x), dc.y * i.y * (1 - k.y * k.y));
    uint32_t z3 = pack(dh.x * tc.x * o.x * (1 - o.x), dh.y * tc.y * o.y * (1 - o.y));
    dc.x *= f.x; dc.y *= f.y;
    if (t > 0) {
#pragma unroll
      for (int r = 0; r < 4; r++) send4(far[r] + b * 8 * 1056 * 2, farbar[r] + 8 * b, z0, z1, z2, z3);
    }
    *(uint32_t*)(sd + t * 8192) = z0; *(uint32_t*)(sd + t * 8192 + 256) = z1;
    *(uint32_t*)(sd + t * 8192 + 512) = z2; *(uint32_t*)(sd + t * 8192 + 768) = z3;
    if (t == 0) break;
    cn = cp; cp = *(const float2*)(cd + (t - 1) * 2048);
#pragma unroll
    for (int m = 0; m < 4; m++) gz[m] = *(const uint32_t*)(gd + (t - 1) * 8192 + 256 * m);
    up = *(const uint32_t*)(ad + (t - 1) * 2048);
    bar_wait(&bars[b], (n >> 1) & 1);
    if (tid == 0) bar_expect(&bars[b], 16384);
    float acc[2][2][4] = {};
    const bf* zp = &zb[b][g * 1056 + 256 * kq + 8 * q];
#pragma unroll
    for (int s = 0; s < 8; s++) {
      uint4 v = *(const uint4*)(zp + 32 * s);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        mma(acc[m][0], a[s][0][2 * m], a[s][0][2 * m + 1], a[s][1][2 * m], a[s][1][2 * m + 1], v.x, v.y);
        mma(acc[m][1], a[s][2][2 * m], a[s][2][2 * m + 1], a[s][3][2 * m], a[s][3][2 * m + 1], v.z, v.w);
      }
    }
#pragma unroll
    for (int m = 0; m < 2; m++) {
      int u = 32 * uh + 8 * (g >> 1) + 4 * m + (g & 1);
      part[kq][2 * q][u] = acc[m][0][0] + acc[m][1][0]; part[kq][2 * q + 1][u] = acc[m][0][1] + acc[m][1][1];
      part[kq][2 * q][u + 2] = acc[m][0][2] + acc[m][1][2]; part[kq][2 * q + 1][u + 2] = acc[m][0][3] + acc[m][1][3];
    }
    __syncthreads();
    float2 p0 = *(float2*)&part[0][warp][2 * lane], p1 = *(float2*)&part[1][warp][2 * lane];
    float2 p2 = *(float2*)&part[2][warp][2 * lane], p3 = *(float2*)&part[3][warp][2 * lane];
    dh = make_float2((p0.x + p1.x) + (p2.x + p3.x), (p0.y + p1.y) + (p2.y + p3.y));
  }
  cluster_leave();
}

typedef STORED S;
extern "C" __global__ void __launch_bounds__(160, 3) head_a_(const bf* out, const bf* theta, const S* delta, const float* scale,
    const float* offset, const int* meta, float* sums, float* means) {
  head_a<S>(out, theta, delta, scale, offset, meta, sums, means);
}
extern "C" __global__ void __launch_bounds__(128, 3) head_b_(const bf* out, const bf* came, const bf* theta, const S* delta,
    const float* scale, const float* level, const float* share, const int* targets, const int* inputs, const int* meta,
    const float* rate, const float* unit, S* fresh, float* square) {
  head_b<S>(out, came, theta, delta, scale, level, share, targets, inputs, meta, rate, unit, fresh, square);
}
extern "C" __global__ void __launch_bounds__(256, 3) sgd256_(const bf* left, const bf* right, const S* delta, const float* scale,
    const float* rate, const float* unit, S* fresh, float* square) {
  sgd<S, 256>(left, right, delta, scale, rate, unit, fresh, square);
}
extern "C" __global__ void __launch_bounds__(256, 3) sgd96_(const bf* left, const bf* right, const S* delta, const float* scale,
    const float* rate, const float* unit, S* fresh, float* square) {
  sgd<S, 96>(left, right, delta, scale, rate, unit, fresh, square);
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256, 1) recur_f_(const bf* words, const float* bias,
    const bf* theta, const S* delta, const float* scale, const bf* hidden, const float* cell, bf* gates, float* cells, bf* hiddens) {
  recur_f<S>(words, bias, theta, delta, scale, hidden, cell, gates, cells, hiddens);
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256, 1) recur_b_(const bf* above, const bf* gates,
    const float* cells, const bf* theta, const S* delta, const float* scale, bf* slopes) {
  recur_b<S>(above, gates, cells, theta, delta, scale, slopes);
}
