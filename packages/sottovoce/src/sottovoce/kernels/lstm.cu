// The kernels of FedAvg with the paper's LSTM, for all users of a block. Sizes: 80 tokens a step (10 x 8 lanes), E = 96, H = 256.
// All products have bf16 numbers and float32 sums. Those of large matrices are products of a warpgroup, the others of
// a warp. 80 = 5*16 = 64 + 16, 96 = 6*16, so nothing is padded.
// STORED, the kind of Δ between steps (float or half), AT_HAND and TOGETHER (of pass B) are defined before this text.
// A stored number times `scale` is Δ; before the clip it was times `unit`.
// A scale below 0 marks a user who has finished: every kernel returns at once, and nobody reads what it would have written.
#define T 80
#define E 96
#define H 256
#define AHEAD 32  // about as many users are on the device at a time
#define LOG2E 1.4426950408889634f

// Products of a warpgroup whose left operand is in registers, with the right one by rows or by columns.
template <int N> __device__ __forceinline__ void multiply(float (&d)[N][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int add) {
  wgmma_regs<8 * N, 0>((float (&)[4 * N])d, {a0, a1, a2, a3}, b, add);
}
template <int N> __device__ __forceinline__ void multiply_by_columns(float (&d)[N][4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b, int add) {
  wgmma_regs<8 * N, 1>((float (&)[4 * N])d, {a0, a1, a2, a3}, b, add);
}
template <int N> __device__ __forceinline__ void pin(float (&d)[N][4]) { pin((float (&)[4 * N])d); }

__device__ __forceinline__ float sigmoid(float x) { return __fdividef(1.f, 1.f + ex2(-LOG2E * x)); }
__device__ __forceinline__ float tanh_(float x) { return 2.f * __fdividef(1.f, 1.f + ex2(-2.f * LOG2E * x)) - 1.f; }

// ------------------------------------------------------------------------------------------------- softmax, pass A
// grid (splits, users), 128 threads: tiles of 64 rows of the table. meta: vocabulary, rows of a split. Four warps multiply the first 64 tokens
// together, each 16 of them with every row; of the last 16 tokens a warp sees its 16 rows of a tile, alone.
template <typename S>
__device__ __forceinline__ void head_a(const bf* out, const bf* received, const S* delta, const float* scale_, const float* offset,
                                       const int* meta, float* sums, float* means) {
  constexpr int ROWS = 64, BESIDE = 160, BELOW = 12 * BESIDE;  // 32 bytes beside each piece: to write two rows of four has no bank conflicts
  unsigned char* es = raw;                       // [8][12] pieces: normalised rows, eight of them and eight columns
  S* ds = (S*)(raw + 8 * BELOW);                 // [64][E]: the next tile of delta
  bf* ts = (bf*)(ds + ROWS * E);                 // [64][E]: and of received
  unsigned char* os = (unsigned char*)(ts + ROWS * E);  // [2][12] pieces: the last 16 tokens
  __shared__ __align__(8) uint64_t bar;
  __shared__ float part[4][16];
  const int user = blockIdx.y, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  const int V = meta[0], rows = meta[1];
  const int first = blockIdx.x * rows, last = min(V, first + rows), tiles = (last - first + ROWS - 1) / ROWS;
  const float scale = scale_[user];
  if (scale < 0) return;
  if (tid == 0) { bar_init(&bar); bar_ready(); }
  __syncthreads();
  auto fetch = [&](int t) {
    const int v = first + ROWS * t, n = min(ROWS, last - v);
    bar_expect(&bar, n * E * (int)(sizeof(S) + 2));
    bulk_copy(ds, delta + ((size_t)user * V + v) * E, n * E * (int)sizeof(S), &bar);
    bulk_copy(ts, received + (size_t)v * E, n * E * 2, &bar);
  };
  if (tid == 0) fetch(0);
  for (int i = tid; i < 16 * 12; i += 128)
    *(uint4*)(os + (i & 8 ? 12 * 128 : 0) + (i >> 4) * 128 + 16 * (i & 7)) = *(const uint4*)(out + ((size_t)user * T + 64 + (i & 15)) * E + 8 * (i >> 4));
  uint32_t a[6][4];
  const bf* o = out + ((size_t)user * T + 16 * warp + g) * E + 2 * q;
#pragma unroll
  for (int s = 0; s < 6; s++) {
    a[s][0] = *(const uint32_t*)(o + 16 * s); a[s][1] = *(const uint32_t*)(o + 8 * E + 16 * s);
    a[s][2] = *(const uint32_t*)(o + 16 * s + 8); a[s][3] = *(const uint32_t*)(o + 8 * E + 16 * s + 8);
  }
  const float *of = offset + user * T, oa = -of[16 * warp + g], ob = -of[16 * warp + g + 8], oc = -of[64 + g], od = -of[72 + g];
  const uint64_t for_scores = operand(es, BESIDE, BELOW), for_means = operand(es, BELOW, BESIDE);
  float acc[12][4] = {}, own[12][4] = {};
  float la = 0, lb = 0, lc = 0, ld = 0;
#pragma unroll 1
  for (int t = 0; t < tiles; t++) {
    const int v0 = first + ROWS * t, n = min(ROWS, last - v0);
    bar_wait(&bar, t & 1);
#pragma unroll
    for (int p = 0; p < 2; p++) {  // eight rows of a warp at once, four threads a row
      const int block = 4 * p + warp, r = 8 * block + g;
      float e[3][8], ss = 0;
#pragma unroll
      for (int j = 0; j < 3; j++) {
        wide8(e[j], ds + r * E + 32 * j + 8 * q);
        const uint4 th = *(const uint4*)(ts + r * E + 32 * j + 8 * q);
        const float2 t0 = unpack(th.x), t1 = unpack(th.y), t2 = unpack(th.z), t3 = unpack(th.w);
        e[j][0] = fmaf(scale, e[j][0], t0.x); e[j][1] = fmaf(scale, e[j][1], t0.y);
        e[j][2] = fmaf(scale, e[j][2], t1.x); e[j][3] = fmaf(scale, e[j][3], t1.y);
        e[j][4] = fmaf(scale, e[j][4], t2.x); e[j][5] = fmaf(scale, e[j][5], t2.y);
        e[j][6] = fmaf(scale, e[j][6], t3.x); e[j][7] = fmaf(scale, e[j][7], t3.y);
#pragma unroll
        for (int w = 0; w < 8; w++) ss = fmaf(e[j][w], e[j][w], ss);
      }
      const float k = rsqrtf(fmaxf(quad(ss), 1e-24f));
#pragma unroll
      for (int j = 0; j < 3; j++) {
        uint4 x = make_uint4(pack(e[j][0] * k, e[j][1] * k), pack(e[j][2] * k, e[j][3] * k),
                             pack(e[j][4] * k, e[j][5] * k), pack(e[j][6] * k, e[j][7] * k));
        if (r >= n) x = make_uint4(0, 0, 0, 0);  // shared memory there may hold NaN
        *(uint4*)(es + block * BELOW + (4 * j + q) * BESIDE + 16 * g) = x;
      }
    }
    fence_async();
    __syncthreads();
    if (tid == 0 && t + 1 < tiles) fetch(t + 1);
    auto tile = [&](bool partial) {
      auto probabilities = [&](float (&x)[4], int c, float below, float above) {
        x[0] = ex2(x[0] + below); x[1] = ex2(x[1] + below); x[2] = ex2(x[2] + above); x[3] = ex2(x[3] + above);
        if (partial) {
#pragma unroll
          for (int i = 0; i < 4; i++) if (8 * c + 2 * q + (i & 1) >= n) x[i] = 0;
        }
      };
      float sc[4][4];
      uint32_t p[4][2];
      {  // the last 16 tokens, with this warp's 16 rows
        const unsigned char* base = es + 2 * warp * BELOW + (lane & 7) * 16;
        const unsigned char* us = os + (lane & 8 ? 12 * 128 : 0) + (lane >> 4) * 128 + (lane & 7) * 16;
        float s0[4] = {}, s1[4] = {};
#pragma unroll
        for (int k = 0; k < 3; k++) {
          uint32_t r0[4], r1[4], u0[4], u1[4];
          ldmatrix(u0, us + 4 * k * 128); ldmatrix(u1, us + (4 * k + 2) * 128);
          ldmatrix(r0, base + (4 * k + (lane >> 3)) * BESIDE);
          ldmatrix(r1, base + BELOW + (4 * k + (lane >> 3)) * BESIDE);
          mma(s0, u0[0], u0[1], u0[2], u0[3], r0[0], r0[1]); mma(s1, u0[0], u0[1], u0[2], u0[3], r1[0], r1[1]);
          mma(s0, u1[0], u1[1], u1[2], u1[3], r0[2], r0[3]); mma(s1, u1[0], u1[1], u1[2], u1[3], r1[2], r1[3]);
        }
        probabilities(s0, 2 * warp, oc, od); probabilities(s1, 2 * warp + 1, oc, od);
        lc += (s0[0] + s0[1]) + (s1[0] + s1[1]); ld += (s0[2] + s0[3]) + (s1[2] + s1[3]);
        const uint32_t p0 = pack(s0[0], s0[1]), p1 = pack(s0[2], s0[3]), p2 = pack(s1[0], s1[1]), p3 = pack(s1[2], s1[3]);
#pragma unroll
        for (int m = 0; m < 6; m++) {
          uint32_t r[4];
          ldmatrix_trans(r, base + ((lane >> 3) & 1) * BELOW + (2 * m + (lane >> 4)) * BESIDE);
          mma(own[2 * m], p0, p1, p2, p3, r[0], r[1]);
          mma(own[2 * m + 1], p0, p1, p2, p3, r[2], r[3]);
        }
      }
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < 6; k++) multiply(sc, a[k][0], a[k][1], a[k][2], a[k][3], for_scores + k * (2 * BESIDE >> 4), k > 0);
      wgmma_commit();
#pragma unroll
      for (int h = 0; h < 2; h++) {  // 32 rows, then the others: while the first are averaged, their scores are made
        if (h) wgmma_wait<1>(); else wgmma_wait<0>();
        pin(sc);
#pragma unroll
        for (int c = 0; c < 4; c++) {
          probabilities(sc[c], 4 * h + c, oa, ob);
          la += sc[c][0] + sc[c][1]; lb += sc[c][2] + sc[c][3];
        }
        if (h) wgmma_wait<0>();  // the first average has read `p`
#pragma unroll
        for (int c = 0; c < 4; c++) { p[c][0] = pack(sc[c][0], sc[c][1]); p[c][1] = pack(sc[c][2], sc[c][3]); }
        wgmma_fence();
        if (!h) {
#pragma unroll
          for (int k = 0; k < 6; k++) multiply(sc, a[k][0], a[k][1], a[k][2], a[k][3], for_scores + (4 * BELOW + k * 2 * BESIDE >> 4), k > 0);
          wgmma_commit();
        }
#pragma unroll
        for (int k = 0; k < 2; k++) multiply_by_columns(acc, p[2 * k][0], p[2 * k][1], p[2 * k + 1][0], p[2 * k + 1][1], for_means + (2 * h + k) * (2 * BELOW >> 4), 1);
        wgmma_commit();
      }
      wgmma_wait<0>();
      pin(acc);
    };
    if (n == ROWS) tile(false); else tile(true);
    __syncthreads();
  }
  la = quad(la); lb = quad(lb); lc = quad(lc); ld = quad(ld);
  const size_t place_ = (size_t)user * gridDim.x + blockIdx.x;
  float* m = means + place_ * T * E + (16 * warp + g) * E + 2 * q;
  float* all = (float*)raw;  // [4][16][E]: what each warp has of the last 16 tokens
#pragma unroll
  for (int n = 0; n < 12; n++) {
    *(float2*)(m + 8 * n) = make_float2(acc[n][0], acc[n][1]);
    *(float2*)(m + 8 * E + 8 * n) = make_float2(acc[n][2], acc[n][3]);
    *(float2*)(all + (16 * warp + g) * E + 8 * n + 2 * q) = make_float2(own[n][0], own[n][1]);
    *(float2*)(all + (16 * warp + g + 8) * E + 8 * n + 2 * q) = make_float2(own[n][2], own[n][3]);
  }
  if (q == 0) { sums[place_ * T + 16 * warp + g] = la; sums[place_ * T + 16 * warp + g + 8] = lb; part[warp][g] = lc; part[warp][g + 8] = ld; }
  __syncthreads();
  for (int i = tid; i < 16 * E; i += 128)
    means[(place_ * T + 64) * E + i] = (all[i] + all[16 * E + i]) + (all[32 * E + i] + all[48 * E + i]);
  if (tid < 16) sums[place_ * T + 64 + tid] = (part[0][tid] + part[1][tid]) + (part[2][tid] + part[3][tid]);
}

// ------------------------------------------------------------------------------------------------- softmax, pass B
// grid (blocks, users), 128 threads: four warps take 64 rows of the table at a time, 16 each. meta: vocabulary, rows of a group, groups of a block.
// rate: the learning rate. Each group has a sum of squares of its own; a block has at most TOGETHER of them.
// A thread's numbers of 32 columns are 8q..8q+7, so that it reads and writes 16 bytes at once: in `hs` columns lie in that order.
// Rows are multiplied as they are, and divided by their norms afterwards.
template <typename S>
__device__ __forceinline__ void head_b(const bf* out, const bf* of_words, const bf* received, const S* delta, const float* scale_,
                                       const float* level, const float* share, const int* targets, const int* inputs, const int* meta,
                                       const float* rate, const float* unit_, S* fresh, float* square) {
  constexpr int ROW = E * sizeof(S), STAGE = 16 * (ROW + 2 * E), BESIDE = 128, BELOW = 12 * BESIDE;
  unsigned char* hs = raw;  // [10][12] pieces: eight tokens, eight columns
  bf* ws = (bf*)(raw + 10 * BELOW + 8 * STAGE);  // [AT_HAND][E]: gradients of the first words read that are in this block's rows
  __shared__ __align__(16) float lv[T], sh[T];
  __shared__ __align__(16) int tg[T];
  __shared__ int place[T];  // of a word read: its row of `ws`, or more than those
  __shared__ float red[TOGETHER][4];
  __shared__ __align__(8) uint64_t bars[4][2], kept;
  const int user = blockIdx.y, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  unsigned char* mine = raw + 10 * BELOW + warp * 2 * STAGE;  // this warp's next rows, twice
  uint64_t* bar = bars[warp];
  const int V = meta[0], rows = meta[1], groups = meta[2], first = blockIdx.x * groups * rows, last = min(V, first + groups * rows);
  const float scale = scale_[user], unit = unit_[user], eta = rate[0] / unit, keep = scale / unit;
  if (scale < 0) return;
  if (lane == 0) { bar_init(bar); bar_init(bar + 1); if (warp == 0) bar_init(&kept); bar_ready(); }
  __syncwarp();
  auto fetch = [&](int v0, int s) {
    if (lane == 0 && v0 < last) {
      const int n = min(16, last - v0);
      unsigned char* to = mine + s * STAGE;
      bar_expect(bar + s, n * (ROW + 2 * E));
      bulk_copy(to, delta + ((size_t)user * V + v0) * E, n * ROW, bar + s);
      bulk_copy(to + 16 * ROW, received + (size_t)v0 * E, n * 2 * E, bar + s);
    }
  };
  fetch(first + 16 * warp, 0); fetch(first + 64 + 16 * warp, 1);
  int wanted[3], read[3];  // words of this lane: of tokens lane, lane + 32 and lane + 64
#pragma unroll
  for (int i = 0; i < 3; i++) {
    const int t = lane + 32 * i;
    wanted[i] = t < T ? targets[user * T + t] : -16; read[i] = t < T ? inputs[user * T + t] : -16;
  }
  if (warp == 0) {  // which words read are in this block's rows, and where their gradients will lie
    int before = 0;
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const unsigned here = __ballot_sync(~0u, read[i] >= first && read[i] < last);
      if (lane + 32 * i < T) place[lane + 32 * i] = before + __popc(here & ((1u << lane) - 1));
      before += __popc(here);
    }
    if (lane == 0) bar_expect(&kept, min(before, AT_HAND) * 2 * E);
    __syncwarp();
#pragma unroll
    for (int i = 0; i < 3; i++) {
      const int t = lane + 32 * i;
      if (read[i] >= first && read[i] < last && place[t] < AT_HAND) bulk_copy(ws + place[t] * E, of_words + ((size_t)user * T + t) * E, 2 * E, &kept);
    }
  }
  for (int i = tid; i < T * 12; i += 128) {  // columns 8c..8c+7 of token r
    const int r = i / 12, c = i % 12;
    const uint4 x = *(const uint4*)(out + ((size_t)user * T + r) * E + 8 * c);
    unsigned char* to = hs + (r >> 3) * BELOW + 4 * (c >> 2) * BESIDE + 16 * (r & 7) + 4 * (c & 3);
    *(uint32_t*)to = x.x; *(uint32_t*)(to + BESIDE) = x.y; *(uint32_t*)(to + 2 * BESIDE) = x.z; *(uint32_t*)(to + 3 * BESIDE) = x.w;
  }
  if (tid < T) {
    // share * 2^(score - level) = 2^(score - level + log2 share): log2 0 is -inf, and 2^-inf is 0.
    sh[tid] = share[user * T + tid] * LN2; lv[tid] = log2f(sh[tid]) - level[user * T + tid];
    tg[tid] = targets[user * T + tid];
  }
  fence_async();
  __syncthreads();
  const uint64_t for_scores = operand(hs, BESIDE, BELOW), for_gradients = operand(hs, BELOW, BESIDE);
  bar_wait(&kept, 0);
  float sq = 0;
  int round = 0;
#pragma unroll 1
  for (int v = first; v < last; v += 64, round++) {
    const int v0 = v + 16 * warp, s = round & 1, va = v0 + g, vb = va + 8;
    const S* da_ = (const S*)(mine + s * STAGE) + g * E + 8 * q;
    const bf* ta_ = (const bf*)(mine + s * STAGE + 16 * ROW) + g * E + 8 * q;
    if (v0 < last) bar_wait(bar + s, (round >> 1) & 1);
    uint32_t ea[12], eb[12];
    float sa = 0, sb = 0;
#pragma unroll
    for (int m = 0; m < 3; m++) {
      float x[8];
      uint4 t = *(const uint4*)(ta_ + 32 * m);
      wide8(x, da_ + 32 * m);
      float2 t0 = unpack(t.x), t1 = unpack(t.y), t2 = unpack(t.z), t3 = unpack(t.w);
      x[0] = fmaf(scale, x[0], t0.x); x[1] = fmaf(scale, x[1], t0.y); x[2] = fmaf(scale, x[2], t1.x); x[3] = fmaf(scale, x[3], t1.y);
      x[4] = fmaf(scale, x[4], t2.x); x[5] = fmaf(scale, x[5], t2.y); x[6] = fmaf(scale, x[6], t3.x); x[7] = fmaf(scale, x[7], t3.y);
#pragma unroll
      for (int w = 0; w < 4; w++) { ea[4 * m + w] = pack(x[2 * w], x[2 * w + 1]); sa = fmaf(x[2 * w], x[2 * w], sa); sa = fmaf(x[2 * w + 1], x[2 * w + 1], sa); }
      t = *(const uint4*)(ta_ + 8 * E + 32 * m);
      wide8(x, da_ + 8 * E + 32 * m);
      t0 = unpack(t.x), t1 = unpack(t.y), t2 = unpack(t.z), t3 = unpack(t.w);
      x[0] = fmaf(scale, x[0], t0.x); x[1] = fmaf(scale, x[1], t0.y); x[2] = fmaf(scale, x[2], t1.x); x[3] = fmaf(scale, x[3], t1.y);
      x[4] = fmaf(scale, x[4], t2.x); x[5] = fmaf(scale, x[5], t2.y); x[6] = fmaf(scale, x[6], t3.x); x[7] = fmaf(scale, x[7], t3.y);
#pragma unroll
      for (int w = 0; w < 4; w++) { eb[4 * m + w] = pack(x[2 * w], x[2 * w + 1]); sb = fmaf(x[2 * w], x[2 * w], sb); sb = fmaf(x[2 * w + 1], x[2 * w + 1], sb); }
    }
    __syncwarp();
    float sc[10][4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 6; k++) multiply(sc, ea[2 * k], eb[2 * k], ea[2 * k + 1], eb[2 * k + 1], for_scores + k * (2 * BESIDE >> 4), k > 0);
    wgmma_commit();
    const float ra = rsqrtf(fmaxf(quad(sa), 1e-24f)), rb = rsqrtf(fmaxf(quad(sb), 1e-24f));
    bool want = false, have = false;
#pragma unroll
    for (int i = 0; i < 3; i++) { want |= (unsigned)(wanted[i] - v0) < 16u; have |= (unsigned)(read[i] - v0) < 16u; }
    wgmma_wait<0>();
    pin(sc);
    // The dot product of a row with its gradient is the sum over tokens of error times score.
    float da = 0, db = 0;
    uint32_t pa[10], pb[10];
    auto make_errors = [&](bool wanted_here) {
#pragma unroll
      for (int n = 0; n < 10; n++) {
        const float2 l = *(const float2*)(lv + 8 * n + 2 * q);
        float e0 = ex2(fmaf(sc[n][0], ra, l.x)), e1 = ex2(fmaf(sc[n][1], ra, l.y));
        float e2 = ex2(fmaf(sc[n][2], rb, l.x)), e3 = ex2(fmaf(sc[n][3], rb, l.y));
        if (wanted_here) {
          const int2 t = *(const int2*)(tg + 8 * n + 2 * q);
          const float2 h = *(const float2*)(sh + 8 * n + 2 * q);
          if (t.x == va) e0 -= h.x;
          if (t.y == va) e1 -= h.y;
          if (t.x == vb) e2 -= h.x;
          if (t.y == vb) e3 -= h.y;
        }
        da = fmaf(e0, sc[n][0], da); da = fmaf(e1, sc[n][1], da); db = fmaf(e2, sc[n][2], db); db = fmaf(e3, sc[n][3], db);
        pa[n] = pack(e0, e1); pb[n] = pack(e2, e3);
      }
    };
    if (__any_sync(~0u, want)) make_errors(true); else make_errors(false);
    float sl[12][4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 5; k++) multiply_by_columns(sl, pa[2 * k], pb[2 * k], pa[2 * k + 1], pb[2 * k + 1], for_gradients + k * (2 * BELOW >> 4), k > 0);
    wgmma_commit();
    wgmma_wait<0>();
    pin(sl);
    // Words read that are in these rows: rare, so one at a time.
    if (__any_sync(~0u, have)) {
#pragma unroll
      for (int i = 0; i < 3; i++) {
        unsigned found = __ballot_sync(~0u, (unsigned)(read[i] - v0) < 16u);
        while (found) {
          const int from = __ffs(found) - 1, t = 32 * i + from, r = __shfl_sync(~0u, read[i], from) - v0;
          found &= found - 1;
          if (g == (r & 7)) {
            const int at_ = place[t];
            const bf *near = ws + at_ * E + 8 * q, *far = of_words + ((size_t)user * T + t) * E + 8 * q;
#pragma unroll
            for (int m = 0; m < 3; m++) {
              const uint4 u = at_ < AT_HAND ? *(const uint4*)(near + 32 * m) : *(const uint4*)(far + 32 * m);
              const uint32_t us[4] = {u.x, u.y, u.z, u.w};
#pragma unroll
              for (int w_ = 0; w_ < 4; w_++) {
                const float2 y = unpack(us[w_]), x = unpack(r < 8 ? ea[4 * m + w_] : eb[4 * m + w_]);
                const float dot = x.x * y.x + x.y * y.y;
                if (r < 8) { da += dot; sl[4 * m + w_][0] += y.x; sl[4 * m + w_][1] += y.y; }
                else { db += dot; sl[4 * m + w_][2] += y.x; sl[4 * m + w_][3] += y.y; }
              }
            }
          }
        }
      }
      __syncwarp();
    }
    const float fa = eta * ra, fb = eta * rb, ka = fa * ra * (ra * quad(da)), kb = fb * rb * (rb * quad(db));
    const size_t to = ((size_t)user * V + v0 + g) * E + 8 * q;
#pragma unroll
    for (int m = 0; m < 3; m++) {
      float x[8];
      wide8(x, da_ + 32 * m);
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const float2 y = unpack(ea[4 * m + w]);
        x[2 * w] = fmaf(keep, x[2 * w], fmaf(ka, y.x, -fa * sl[4 * m + w][0]));
        x[2 * w + 1] = fmaf(keep, x[2 * w + 1], fmaf(ka, y.y, -fa * sl[4 * m + w][1]));
      }
      if (va < last) {
        put8(fresh + to + 32 * m, x);
#pragma unroll
        for (int w = 0; w < 8; w++) sq = fmaf(x[w], x[w], sq);
      }
      wide8(x, da_ + 8 * E + 32 * m);
#pragma unroll
      for (int w = 0; w < 4; w++) {
        const float2 y = unpack(eb[4 * m + w]);
        x[2 * w] = fmaf(keep, x[2 * w], fmaf(kb, y.x, -fb * sl[4 * m + w][2]));
        x[2 * w + 1] = fmaf(keep, x[2 * w + 1], fmaf(kb, y.y, -fb * sl[4 * m + w][3]));
      }
      if (vb < last) {
        put8(fresh + to + 8 * E + 32 * m, x);
#pragma unroll
        for (int w = 0; w < 8; w++) sq = fmaf(x[w], x[w], sq);
      }
    }
    __syncwarp();
    fetch(v0 + 128, s);
    if (v + 64 >= last || (v + 64 - first) % rows == 0) {  // the end of a group
#pragma unroll
      for (int s = 16; s; s >>= 1) sq += __shfl_xor_sync(~0u, sq, s);
      if (lane == 0) red[(v - first) / rows][warp] = sq;
      sq = 0;
    }
  }
  __syncthreads();
  if (tid < (last - first + rows - 1) / rows)
    square[(size_t)user * ((V + rows - 1) / rows) + blockIdx.x * groups + tid] = ((red[tid][0] + red[tid][1]) + (red[tid][2] + red[tid][3])) * (unit * unit);
}

// ------------------------------------------------------------------------------------------------- SGD of a plain weight
// fresh = scale * delta - eta * leftT right. grid (R / 256, users), 256 threads, left [80, R], right [80, K]; a scale for each block.
// Four warps take 64 rows at a time, 64 or 32 columns of them. In `rs` columns lie as in pass B.
template <typename S, int K>
__device__ __forceinline__ void sgd(const bf* left, const bf* right, const S* delta, const float* scale_, const float* rate, const float* unit_, S* fresh, float* square) {
  constexpr int WIDE = K == 256 ? 64 : 32, STEPS = K / WIDE, PIECE = 128, BELOW_L = 32 * PIECE, BELOW_R = K / 8 * PIECE;
  unsigned char *ls = raw, *rs = raw + 10 * BELOW_L;  // [10][32] and [10][K / 8] pieces: eight tokens, eight columns
  __shared__ float red[8];
  const int user = blockIdx.y, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3, R = gridDim.x * 256;
  const float unit = unit_[user], scale = scale_[user * gridDim.x + blockIdx.x] / unit, eta = rate[0] / unit;
  if (scale < 0) return;
  const size_t mine = ((size_t)user * R + blockIdx.x * 256 + 16 * warp + g) * K + 8 * q;
  auto place_ = [&](int i) { return mine + (size_t)(i / STEPS) * 128 * K + (i % STEPS) * WIDE; };
  Eight<S> next[WIDE / 32][2];
  auto take = [&](int i) {
    const S* p = delta + place_(i);
#pragma unroll
    for (int m = 0; m < WIDE / 32; m++) { take8(next[m][0], p + 32 * m); take8(next[m][1], p + 8 * K + 32 * m); }
  };
  take(0);
#pragma unroll 5
  for (int i = 0; i < 10; i++) {  // a warp: eight tokens, four times eight columns
    const int c = 4 * warp + (lane >> 3), t = 8 * i + (lane & 7);
    *(uint4*)(ls + i * BELOW_L + c * PIECE + 16 * (lane & 7)) = *(const uint4*)(left + ((size_t)user * T + t) * R + blockIdx.x * 256 + 8 * c);
  }
#pragma unroll 5
  for (int i = warp; i < 10 * (K / 32); i += 8) {
    const int block = i / (K / 32), m = i % (K / 32), t = 8 * block + (lane & 7), c = lane >> 3;
    const uint4 x = *(const uint4*)(right + ((size_t)user * T + t) * K + 32 * m + 8 * c);
    unsigned char* to = rs + block * BELOW_R + 4 * m * PIECE + 16 * (lane & 7) + 4 * c;
    *(uint32_t*)to = x.x; *(uint32_t*)(to + PIECE) = x.y; *(uint32_t*)(to + 2 * PIECE) = x.z; *(uint32_t*)(to + 3 * PIECE) = x.w;
  }
  fence_async();
  __syncthreads();
  const uint64_t for_step = operand(rs, BELOW_R, PIECE);
  uint32_t a[5][4];
  float sq = 0;
#pragma unroll 1
  for (int i = 0; i < 2 * STEPS; i++) {
    if (i % STEPS == 0) {
      const unsigned char* p = ls + (lane >> 4) * BELOW_L + (16 * (i / STEPS) + 2 * warp + ((lane >> 3) & 1)) * PIECE + 16 * (lane & 7);
#pragma unroll
      for (int k = 0; k < 5; k++) ldmatrix_trans(a[k], p + 2 * k * BELOW_L);
    }
    float acc[WIDE / 8][4];
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < 5; k++) multiply_by_columns(acc, a[k][0], a[k][1], a[k][2], a[k][3], for_step + ((i % STEPS) * (WIDE / 8) * PIECE + 2 * k * BELOW_R >> 4), k > 0);
    wgmma_commit();
    Eight<S> now[WIDE / 32][2];
#pragma unroll
    for (int m = 0; m < WIDE / 32; m++) { now[m][0] = next[m][0]; now[m][1] = next[m][1]; }
    if (i + 1 < 2 * STEPS) take(i + 1);
    wgmma_wait<0>();
    pin(acc);
    S* to = fresh + place_(i);
#pragma unroll
    for (int m = 0; m < WIDE / 32; m++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float x[8];
        wide8(x, now[m][h]);
#pragma unroll
        for (int w = 0; w < 8; w++) { x[w] = fmaf(scale, x[w], -eta * acc[4 * m + (w >> 1)][2 * h + (w & 1)]); sq = fmaf(x[w], x[w], sq); }
        put8(to + 8 * h * K + 32 * m, x);
      }
  }
#pragma unroll
  for (int s = 16; s; s >>= 1) sq += __shfl_xor_sync(~0u, sq, s);
  if (lane == 0) red[warp] = sq;
  __syncthreads();
  if (tid == 0) { float x = 0; for (int i = 0; i < 8; i++) x += red[i]; square[(size_t)user * gridDim.x + blockIdx.x] = x * (unit * unit); }
}

// ------------------------------------------------------------------------------------------------- recurrence

// Eight recurrent weights in a row: received + scale * delta, rounded to bf16.
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

// grid (4, users), clusters of 4, 256 threads, two blocks on a multiprocessor: one loads while the other waits. A block owns 64
// hidden units; half of its 256 x 256 weights live in registers, half in shared memory, where each thread reads only its own.
// Blocks send each other their part of the state. Two buffers are enough: a block sends step t + 1 only after it has all
// of step t, and every block sends its part of step t only after all its warps have read step t - 1.
template <typename S>
__device__ __forceinline__ void recur_f(const bf* words, const float* bias, const bf* received, const S* delta, const float* scale_, const bf* hidden, const float* cell, bf* gates, float* cells, bf* before, bf* after) {
  __shared__ __align__(16) bf hb[2][8 * 288];
  __shared__ __align__(16) float zs[4][8][68];
  __shared__ __align__(8) uint64_t bars[2];
  const int user = blockIdx.y, rank = blockIdx.x, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  constexpr int KEPT = 6;  // of the eight parts of a warp's first 16 rows; the others, and its last 16, are in shared memory
  uint4 a[KEPT][2], *ws = (uint4*)raw + warp * 32 * 2 * (16 - KEPT) + lane;
  const S* w = delta + (size_t)user * 1024 * H;
  const float scale = scale_[4 * user + (warp >> 1)];  // of the gate that this warp's 32 rows belong to
  if (scale < 0) return;  // all four blocks of the cluster: it has one user
#pragma unroll
  for (int m = 1; m >= 0; m--) {
    const int lr = 32 * warp + 16 * m + g;
    const size_t p = (size_t)((lr >> 6) * 256 + 64 * rank + (lr & 63)) * H + 8 * q;
#pragma unroll
    for (int j = 0; j < 8; j++) {
      const uint4 x = blend(w + p + 32 * j, received + p + 32 * j, scale), y = blend(w + p + 8 * H + 32 * j, received + p + 8 * H + 32 * j, scale);
      const uint4 one = make_uint4(x.x, y.x, x.y, y.y), two = make_uint4(x.z, y.z, x.w, y.w);  // as mma takes them
      const int to = m ? j : 8 + j - KEPT;
      if (m || j >= KEPT) { ws[2 * to * 32] = one; ws[(2 * to + 1) * 32] = two; } else { a[j][0] = one; a[j][1] = two; }
      if (j & 1) no_more_loads();  // there are no registers for all loads at once
    }
  }
  if (tid == 0) { bar_init(&bars[0]); bar_init(&bars[1]); bar_ready(); bar_expect(&bars[0], 4096); bar_expect(&bars[1], 4096); }
  *(uint4*)(&hb[0][warp * 288 + 8 * lane]) = *(const uint4*)(hidden + ((size_t)user * 8 + warp) * H + 8 * lane);
  const int unit = 64 * rank + 2 * lane;  // this thread's two units of lane `warp`
  float2 c = *(const float2*)(cell + ((size_t)user * 8 + warp) * H + unit);
  bf* bd = before + ((size_t)user * T + warp) * H + unit;
  bf* hd = after + ((size_t)user * T + warp) * H + unit;
  float* cd = cells + ((size_t)user * 11 * 8 + warp) * H + unit;
  const bf* wd = words + ((size_t)user * T + warp) * 1024 + unit;
  bf* gd = gates + ((size_t)user * T + warp) * 1024 + unit;
  *(float2*)cd = c;
  *(uint32_t*)bd = *(const uint32_t*)(hidden + ((size_t)user * 8 + warp) * H + unit);
  if (tid < 4 && user + AHEAD < gridDim.y) prefetch(w + (size_t)AHEAD * 1024 * H + (size_t)(256 * tid + 64 * rank) * H, 64 * H * (int)sizeof(S));
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
      bar_wait_for_cluster(&bars[t & 1], ((t - 1) >> 1) & 1);
      if (tid == 0) bar_expect(&bars[t & 1], 4096);
    }
    float acc[2][2][4] = {};
    const bf* hp = &hb[t & 1][g * 288 + 8 * q];
#pragma unroll
    for (int j = 0; j < 8; j++) {
      uint4 b = *(const uint4*)(hp + 32 * j);
      const uint4 *c = ws + 2 * (8 + j - KEPT) * 32, *d = ws + 2 * j * 32;
      const uint4 a0 = j < KEPT ? a[j < KEPT ? j : 0][0] : c[0], a1 = j < KEPT ? a[j < KEPT ? j : 0][1] : c[32], d0 = d[0], d1 = d[32];
      mma(acc[0][0], a0.x, a0.y, a0.z, a0.w, b.x, b.y); mma(acc[0][1], a1.x, a1.y, a1.z, a1.w, b.z, b.w);
      mma(acc[1][0], d0.x, d0.y, d0.z, d0.w, b.x, b.y); mma(acc[1][1], d1.x, d1.y, d1.z, d1.w, b.z, b.w);
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
    *(uint32_t*)(hd + t * 2048) = h;
    if (t < 9) *(uint32_t*)(bd + (t + 1) * 2048) = h;
    *(float2*)(cd + (t + 1) * 2048) = c;
    *(uint32_t*)(gd + t * 8192) = pack(gi.x, gi.y); *(uint32_t*)(gd + t * 8192 + 256) = pack(gf.x, gf.y);
    *(uint32_t*)(gd + t * 8192 + 512) = pack(gg.x, gg.y); *(uint32_t*)(gd + t * 8192 + 768) = pack(go.x, go.y);
  }
  cluster_leave();
}

// The backward pass. The sum over 4 x 256 gates runs in the order (pair of units, gate), so that a thread sends 16 bytes.
template <typename S>
__device__ __forceinline__ void recur_b(const bf* above, const bf* gates, const float* cells, const bf* received, const S* delta, const float* scale_, bf* gradients, float* sums) {
  __shared__ __align__(16) bf zb[2][8 * 1056];
  __shared__ __align__(16) float part[4][8][68];
  __shared__ __align__(8) uint64_t bars[2];
  const int user = blockIdx.y, rank = blockIdx.x, tid = threadIdx.x, warp = tid >> 5, lane = tid & 31, g = lane >> 2, q = lane & 3;
  const int uh = warp & 1, kq = warp >> 1;  // which 32 of the block's units come out; which 64 units' gates go in
  constexpr int KEPT = 4;  // of the eight parts of a warp's weights; the others are in shared memory
  uint4 a[KEPT][4], *ws = (uint4*)raw + warp * 32 * 4 * (8 - KEPT) + lane;
  const S* w = delta + (size_t)user * 1024 * H;
  const float4 scales = *(const float4*)(scale_ + 4 * user);  // a gate each
  const float scale[4] = {scales.x, scales.y, scales.z, scales.w};
  if (scale[0] < 0) return;  // all four blocks of the cluster: it has one user
  if (tid == 0) { bar_init(&bars[0]); bar_init(&bars[1]); bar_ready(); bar_expect(&bars[0], 16384); bar_expect(&bars[1], 16384); }
#pragma unroll
  for (int s = 7; s >= 0; s--) {
    uint4 x[4];
#pragma unroll
    for (int j = 0; j < 4; j++) {
      const size_t p = (size_t)(256 * j + 64 * kq + 8 * s + g) * H + 64 * rank + 32 * uh + 8 * q;
      x[j] = blend(w + p, received + p, scale[j]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) x[j] = make_uint4(movmatrix_trans(x[j].x), movmatrix_trans(x[j].y), movmatrix_trans(x[j].z), movmatrix_trans(x[j].w));
#pragma unroll
    for (int j = 0; j < 2; j++) {  // as mma takes them
      const uint4 &y = x[2 * j], &z = x[2 * j + 1], one = make_uint4(y.x, y.y, z.x, z.y), two = make_uint4(y.z, y.w, z.z, z.w);
      if (s >= KEPT) { ws[(4 * (s - KEPT) + j) * 32] = one; ws[(4 * (s - KEPT) + 2 + j) * 32] = two; } else { a[s][j] = one; a[s][2 + j] = two; }
    }
    if (!(s & 1)) no_more_loads();
  }
  if (tid < 4 && user + AHEAD < gridDim.y) prefetch(w + (size_t)AHEAD * 1024 * H + (size_t)(256 * rank + 64 * tid) * H, 64 * H * (int)sizeof(S));
  const int unit = 64 * rank + 2 * lane;
  const bf* gd = gates + ((size_t)user * T + warp) * 1024 + unit;
  const float* cd = cells + ((size_t)user * 11 * 8 + warp) * H + unit;
  const bf* ad = above + ((size_t)user * T + warp) * H + unit;
  bf* sd = gradients + ((size_t)user * T + warp) * 1024 + unit;
  float2 dh = make_float2(0, 0), dc = make_float2(0, 0), total[4] = {};
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
    const float2 y0 = unpack(z0), y1 = unpack(z1), y2 = unpack(z2), y3 = unpack(z3);
    total[0].x += y0.x; total[0].y += y0.y; total[1].x += y1.x; total[1].y += y1.y;
    total[2].x += y2.x; total[2].y += y2.y; total[3].x += y3.x; total[3].y += y3.y;
    if (t == 0) break;
    cn = cp; cp = *(const float2*)(cd + (t - 1) * 2048);
#pragma unroll
    for (int m = 0; m < 4; m++) gz[m] = *(const uint32_t*)(gd + (t - 1) * 8192 + 256 * m);
    up = *(const uint32_t*)(ad + (t - 1) * 2048);
    bar_wait_for_cluster(&bars[b], (n >> 1) & 1);
    if (tid == 0) bar_expect(&bars[b], 16384);
    float acc[2][2][4] = {};
    const bf* zp = &zb[b][g * 1056 + 256 * kq + 8 * q];
#pragma unroll
    for (int s = 0; s < 8; s++) {
      uint4 v = *(const uint4*)(zp + 32 * s);
#pragma unroll
      for (int m = 0; m < 2; m++) {
        const uint4* c = ws + (4 * (s - KEPT) + 2 * m) * 32;
        const uint4 a0 = s < KEPT ? a[s < KEPT ? s : 0][2 * m] : c[0], a1 = s < KEPT ? a[s < KEPT ? s : 0][2 * m + 1] : c[32];
        mma(acc[m][0], a0.x, a0.y, a0.z, a0.w, v.x, v.y); mma(acc[m][1], a1.x, a1.y, a1.z, a1.w, v.z, v.w);
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
  // The sums over tokens: of ten steps in each thread, of eight lanes here.
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++) *(float2*)&part[i][warp][2 * lane] = total[i];
  __syncthreads();
  const int gate = tid >> 6, of = tid & 63;
  float x = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) x += part[gate][i][of];
  sums[(size_t)user * 1024 + 256 * gate + 64 * rank + of] = x;
  cluster_leave();
}

typedef STORED S;
extern "C" __global__ void __launch_bounds__(128, 3) head_a_(const bf* out, const bf* received, const S* delta, const float* scale,
    const float* offset, const int* meta, float* sums, float* means) {
  head_a<S>(out, received, delta, scale, offset, meta, sums, means);
}
extern "C" __global__ void __launch_bounds__(128, 3) head_b_(const bf* out, const bf* of_words, const bf* received, const S* delta,
    const float* scale, const float* level, const float* share, const int* targets, const int* inputs, const int* meta,
    const float* rate, const float* unit, S* fresh, float* square) {
  head_b<S>(out, of_words, received, delta, scale, level, share, targets, inputs, meta, rate, unit, fresh, square);
}
extern "C" __global__ void __launch_bounds__(256, 2) sgd256_(const bf* left, const bf* right, const S* delta, const float* scale,
    const float* rate, const float* unit, S* fresh, float* square) {
  sgd<S, 256>(left, right, delta, scale, rate, unit, fresh, square);
}
extern "C" __global__ void __launch_bounds__(256, 3) sgd96_(const bf* left, const bf* right, const S* delta, const float* scale,
    const float* rate, const float* unit, S* fresh, float* square) {
  sgd<S, 96>(left, right, delta, scale, rate, unit, fresh, square);
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256, 2) recur_f_(const bf* words, const float* bias,
    const bf* received, const S* delta, const float* scale, const bf* hidden, const float* cell, bf* gates, float* cells, bf* before, bf* after) {
  recur_f<S>(words, bias, received, delta, scale, hidden, cell, gates, cells, before, after);
}
extern "C" __global__ void __cluster_dims__(4, 1, 1) __launch_bounds__(256, 2) recur_b_(const bf* above, const bf* gates,
    const float* cells, const bf* received, const S* delta, const float* scale, bf* gradients, float* sums) {
  recur_b<S>(above, gates, cells, received, delta, scale, gradients, sums);
}
