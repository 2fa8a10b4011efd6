// The products with a table of logits for any row size: each user has received + scale * delta. Logits never reach memory.
// STORED (the kind of delta between steps: float or half), UNIT (rows at norm 1), BIASED and COMPARED (with what another model
// predicts) are defined before this text, and logits.cu stands before it. Logits, levels and biases are in base 2. A scale below
// 0 marks a user who has finished: every kernel returns at once, and nobody reads what it would have written.
#define PAD (E % 8 ? 0 : 16 / (int)sizeof(S))  // between rows of delta in shared memory, against bank conflicts
#define DS (E + PAD)
#define ITERATIONS ((GROUPS + 3) / 4)
typedef STORED S;

__device__ __forceinline__ float2 pair(const half* p) { return __half22float2(*(const half2*)p); }
__device__ __forceinline__ float2 pair(const float* p) { return *(const float2*)p; }
__device__ __forceinline__ float4 four(const half* p) { return wide(*(const uint2*)p); }
__device__ __forceinline__ float4 four(const float* p) { return *(const float4*)p; }
__device__ __forceinline__ void put(half* p, float2 x) { *(uint32_t*)p = pack_half(x.x, x.y); }
__device__ __forceinline__ void put(float* p, float2 x) { *(float2*)p = x; }

// The next n rows of delta from memory into `ds`; for one warp.
__device__ __forceinline__ void fetch(S* ds, const S* delta, int n, uint64_t* bar) {
  const int lane = threadIdx.x & 31;
  if (lane == 0) bar_expect(bar, n * E * (int)sizeof(S));
  __syncwarp();
  if (PAD) {
    for (int r = lane; r < n; r += 32) bulk_copy(ds + r * DS, delta + (size_t)r * E, E * (int)sizeof(S), bar);
  } else if (lane == 0) {
    bulk_copy(ds, delta, n * E * (int)sizeof(S), bar);
  }
}

// 64 rows of a warpgroup as they are multiplied, `es` of the user and, if compared, `before` as received; those from n on are
// 0. A lane has one of 8 rows and every fourth group of 8 columns. `inverse`: 1 / norms, of UNIT rows.
template <int COLUMNS>
__device__ __forceinline__ void make_rows(int warp, const bf* received, const S* ds, float scale, int n, unsigned char* es, unsigned char* before, float* inverse, uint64_t* bar, int parity) {
  const int lane = threadIdx.x & 31, start = lane >> 3;
#pragma unroll 1
  for (int half_ = 0; half_ < 2; half_++) {
    const int r = 16 * warp + 8 * half_ + (lane & 7);
    uint2 th[ITERATIONS][2];
#pragma unroll
    for (int i = 0; i < ITERATIONS; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int c = 8 * (start + 4 * i) + 4 * h;
        th[i][h] = r < n && c < E ? *(const uint2*)(received + (size_t)r * E + c) : make_uint2(0, 0);
      }
    if (half_ == 0) bar_wait(bar, parity);
    float k = 1, j = 1;
    auto row = [&](int i, int h) {
      const int c = 8 * (start + 4 * i) + 4 * h;
      const float2 a = unpack(th[i][h].x), b = unpack(th[i][h].y);
      float4 x = make_float4(a.x, a.y, b.x, b.y);
      if (r < n && c < E) {
        const float4 d = four(ds + r * DS + c);
        x = make_float4(fmaf(scale, d.x, x.x), fmaf(scale, d.y, x.y), fmaf(scale, d.z, x.z), fmaf(scale, d.w, x.w));
      }
      return x;
    };
    if (UNIT) {
      float xx = 0, yy = 0;
#pragma unroll
      for (int i = 0; i < ITERATIONS; i++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const float4 x = row(i, h);
          const float2 a = unpack(th[i][h].x), b = unpack(th[i][h].y);
          xx += (x.x * x.x + x.y * x.y) + (x.z * x.z + x.w * x.w); yy += (a.x * a.x + a.y * a.y) + (b.x * b.x + b.y * b.y);
        }
      xx += __shfl_xor_sync(~0u, xx, 8); xx += __shfl_xor_sync(~0u, xx, 16);
      yy += __shfl_xor_sync(~0u, yy, 8); yy += __shfl_xor_sync(~0u, yy, 16);
      k = rsqrtf(fmaxf(xx, 1e-24f)); j = rsqrtf(fmaxf(yy, 1e-24f));
      if (start == 0) inverse[r] = k;
    }
#pragma unroll
    for (int i = 0; i < (COLUMNS / 8 + 3) / 4; i++) {
      const int g = start + 4 * i;
      if (g < COLUMNS / 8) {
        uint4 out = make_uint4(0, 0, 0, 0), old = out;
        if (i < ITERATIONS) {
          const int ii = i < ITERATIONS ? i : 0;
          const float4 x = row(ii, 0), y = row(ii, 1);
          out = make_uint4(pack(k * x.x, k * x.y), pack(k * x.z, k * x.w), pack(k * y.x, k * y.y), pack(k * y.z, k * y.w));
          if (COMPARED) {
            const float2 a = unpack(th[ii][0].x), b = unpack(th[ii][0].y), c = unpack(th[ii][1].x), d = unpack(th[ii][1].y);
            old = make_uint4(pack(j * a.x, j * a.y), pack(j * b.x, j * b.y), pack(j * c.x, j * c.y), pack(j * d.x, j * d.y));
          }
        }
        *(uint4*)(es + in_pieces<COLUMNS>(r, 8 * g)) = out;
        if (COMPARED) *(uint4*)(before + in_pieces<COLUMNS>(r, 8 * g)) = old;
      }
    }
  }
}

// ------------------------------------------------------------------------------------------------- first pass
// grid (parts, users), 256 threads: two warpgroups (teams) with 64 rows each at a time. meta: vocabulary, rows of a part. Of each token
// and part: the offset, the sum of 2^(logit - offset), that sum of rows; and the sum of rows by the other model's predictions.
extern "C" __global__ void __launch_bounds__(256, 1) table_scores_(
    const bf* outputs, const bf* received, const S* delta, const float* scale_, const int* meta,
    IF_BIASED(const float* bias,) IF_COMPARED(const bf* their_outputs, const float* their_level, IF_BIASED(const float* their_bias,))
    float* most_out, float* total_out, float* mean_out IF_COMPARED(, float* other_out)) {
  constexpr int PIECES = ROWS * WIDE * 2, OUTPUTS = T * EC * 2, PROBABILITIES = 2 * ROWS * T * 2;
  unsigned char* os = raw; unsigned char* es = os + OUTPUTS; unsigned char* ps = es + 2 * PIECES;
  unsigned char* os2 = ps + PROBABILITIES; unsigned char* es2 = os2 + COMPARED * OUTPUTS; unsigned char* ps2 = es2 + COMPARED * 2 * PIECES;
  S* ds = (S*)(ps2 + COMPARED * PROBABILITIES);
  __shared__ float offset[T], rise[T], inverse[2 * ROWS], level2[T];
  __shared__ int highest[T];
  __shared__ __align__(8) uint64_t bar;
  const int user = blockIdx.y;
  const Thread me;
  const auto [tid, lane, g, q, team, warp] = me;
  const int V = meta[0], rows = meta[1], first = blockIdx.x * rows, last = min(V, first + rows), tiles = (last - first + 2 * ROWS - 1) / (2 * ROWS);
  const float scale = scale_[user];
  if (scale < 0) return;
  if (tid == 0) { bar_init(&bar); bar_ready(); }
  __syncthreads();
  const S* from = delta + ((size_t)user * V + first) * E;
  if (tid < 32) fetch(ds, from, min(2 * ROWS, last - first), &bar);
  load_outputs<EC>(os, outputs + (size_t)user * T * E);
  IF_COMPARED(load_outputs<EC>(os2, their_outputs + (size_t)user * T * E);)
  for (int i = tid; i < T; i += 256) {
    offset[i] = 0; rise[i] = 0; highest[i] = ordered(LOWEST);
    IF_COMPARED(level2[i] = their_level[user * T + i];)
  }
  float mean[MINE][T / 2], total[T / 4];
  IF_COMPARED(float other[MINE][T / 2];)
#pragma unroll
  for (int i = 0; i < T / 4; i++) total[i] = 0;
#pragma unroll 1
  for (int t = 0; t < tiles; t++) {
    const int v0 = first + 2 * ROWS * t, n = min(2 * ROWS, last - v0), mine = n - ROWS * team;  // rows of this warpgroup; it has 64 at most
    make_rows<WIDE>(warp, received + (size_t)(v0 + ROWS * team) * E, ds + ROWS * team * DS, scale, mine, es + team * PIECES, es2 + team * PIECES, inverse + ROWS * team, &bar, t & 1);
    fence_async();
    __syncthreads();
    if (tid < 32 && t + 1 < tiles) fetch(ds, from + (size_t)(t + 1) * 2 * ROWS * E, min(2 * ROWS, last - v0 - 2 * ROWS), &bar);
    const int r = 16 * warp + g;  // and 8 more
    float s[T / 2];
#if COMPARED
    make_logits<WIDE, EC>(es2 + team * PIECES, os2, s);
    {
      float shift[2] = {0, 0};
#if BIASED
      if (r < mine) shift[0] = their_bias[v0 + ROWS * team + r];
      if (r + 8 < mine) shift[1] = their_bias[v0 + ROWS * team + r + 8];
#endif
#pragma unroll
      for (int j = 0; j < T / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const bool there = r + 8 * h < mine;
          const float a = there ? ex2(s[4 * j + 2 * h] + shift[h] - level2[8 * j + 2 * q]) : 0;
          const float b = there ? ex2(s[4 * j + 2 * h + 1] + shift[h] - level2[8 * j + 2 * q + 1]) : 0;
          *(uint32_t*)(ps2 + in_pieces<T>(ROWS * team + r + 8 * h, 8 * j + 2 * q)) = pack(a, b);
        }
    }
#endif
    make_logits<WIDE, EC>(es + team * PIECES, os, s);
    float shift[2] = {0, 0};
#if BIASED
    if (r < mine) shift[0] = bias[(size_t)user * V + v0 + ROWS * team + r];
    if (r + 8 < mine) shift[1] = bias[(size_t)user * V + v0 + ROWS * team + r + 8];
#endif
    subtract_offset(me, s, shift, r, mine, t == 0, offset, rise, highest);
    add_to_totals(me, s, ps, t == 0, rise, total, mean);
    add_rows(me, es, t == 0, ps, mean IF_COMPARED(, ps2, other));
    __syncthreads();
  }
  const size_t place = (size_t)user * gridDim.x + blockIdx.x;
  put_totals(me, (float*)ps, offset, total, place, most_out, total_out);
  each_sum(me, [&](int m, int i, int column, int token) {
    const size_t to = (place * T + token) * E + column;
    if (column < E) { mean_out[to] = mean[m][i]; IF_COMPARED(other_out[to] = other[m][i];) }
  });
}

// ------------------------------------------------------------------------------------------------- second pass
// grid (groups, users), 256 threads: two warpgroups, each with every second block of 64 rows. meta: vocabulary, rows of a group.
// numbers: learning rate, share of the target token.
extern "C" __global__ void __launch_bounds__(256, 1) table_step_(
    const bf* outputs, const bf* received, const S* delta, const float* scale_, const int* meta, const float* unit_,
    const float* level_, const float* share_, const int* targets_, const float* numbers,
    IF_BIASED(const float* bias,) IF_COMPARED(const bf* their_outputs, const float* their_level, IF_BIASED(const float* their_bias,))
    S* fresh, float* square IF_BIASED(, float* of_bias)) {
  constexpr int PIECES = ROWS * EC * 2, OUTPUTS = T * OUT * 2;
  const int user = blockIdx.y;
  const auto [tid, lane, g, q, team, warp] = Thread();
  unsigned char* os = raw; unsigned char* os2 = os + OUTPUTS; unsigned char* all = os2 + COMPARED * OUTPUTS;
  unsigned char* es = all + team * (1 + COMPARED) * PIECES; unsigned char* es2 = es + PIECES;
  S* ds = (S*)(all + 2 * (1 + COMPARED) * PIECES) + team * ROWS * DS;
  __shared__ float level[T], share[T], level2[T], inverse[2 * ROWS], red[8];
  __shared__ int targets[T];
  __shared__ __align__(8) uint64_t bars[2];
  const int V = meta[0], rows = meta[1], first = blockIdx.x * rows, last = min(V, first + rows), tiles = (last - first + ROWS - 1) / ROWS;
  const float scale = scale_[user], unit = unit_[user], eta = numbers[0] / unit, keep = scale / unit, user_share = numbers[1];
  if (scale < 0) return;
  if (tid < 2) { bar_init(&bars[tid]); bar_ready(); }
  __syncthreads();
  const S* from = delta + ((size_t)user * V + first) * E;
  if (warp == 0 && team < tiles) fetch(ds, from + (size_t)team * ROWS * E, min(ROWS, last - first - ROWS * team), &bars[team]);
  load_outputs<OUT>(os, outputs + (size_t)user * T * E);
  IF_COMPARED(load_outputs<OUT>(os2, their_outputs + (size_t)user * T * E);)
  for (int i = tid; i < T; i += 256) {
    level[i] = level_[user * T + i]; share[i] = share_[user * T + i]; targets[i] = targets_[user * T + i];
    IF_COMPARED(level2[i] = their_level[user * T + i];)
  }
  fence_async();
  __syncthreads();
  float squares = 0;
#pragma unroll 1
  for (int t = team, turn = 0; t < tiles; t += 2, turn ^= 1) {
    const int v0 = first + ROWS * t, n = min(ROWS, last - v0), r = 16 * warp + g;
    if (tid % 128 == 0 && t + 2 < tiles) prefetch(from + (size_t)(t + 2) * ROWS * E, min(ROWS, last - v0 - 2 * ROWS) * E * (int)sizeof(S));
    make_rows<EC>(warp, received + (size_t)v0 * E, ds, scale, n, es, es2, inverse + ROWS * team, &bars[team], turn);
    fence_async();
    warpgroup_sync(team);
    float s[T / 2];
    uint32_t errors[T / 4];
#if COMPARED
    float theirs[T / 2];
    make_logits<EC, OUT>(es2, os2, theirs);
#endif
    make_logits<EC, OUT>(es, os, s);
    float shift[2] = {0, 0}, along[2] = {0, 0};
    IF_COMPARED(float shift2[2] = {0, 0};)
#if BIASED
#pragma unroll
    for (int h = 0; h < 2; h++)
      if (r + 8 * h < n) {
        shift[h] = bias[(size_t)user * V + v0 + r + 8 * h];
        IF_COMPARED(shift2[h] = their_bias[v0 + r + 8 * h];)
      }
#endif
#pragma unroll
    for (int j = 0; j < T / 8; j++) {
      const int token = 8 * j + 2 * q;
      float e[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int h = i >> 1, k = token + (i & 1);
        float x = ex2(s[4 * j + i] + shift[h] - level[k]);
        if (targets[k] == v0 + r + 8 * h) x -= user_share;
        IF_COMPARED(x -= (1 - user_share) * ex2(theirs[4 * j + i] + shift2[h] - level2[k]);)
        e[i] = r + 8 * h < n ? x * share[k] : 0;
        along[h] += e[i];
      }
      errors[2 * j] = pack(LN2 * e[0], LN2 * e[1]); errors[2 * j + 1] = pack(LN2 * e[2], LN2 * e[3]);
    }
#if BIASED
#pragma unroll
    for (int h = 0; h < 2; h++) {
      const float x = quad(along[h]);
      if (q == 0 && r + 8 * h < n) of_bias[(size_t)user * V + v0 + r + 8 * h] = x;
    }
#endif
    float c[CHUNKS][CHUNK / 2];
    multiply_errors<OUT>(errors, os, false, c);
    along[0] = along[1] = 0;
    float rate[2] = {eta, eta};
#if UNIT
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int m = 0; m < CHUNKS; m++)
#pragma unroll
        for (int j = 0; j < CHUNK / 8; j++) {
          const int column = CHUNK * m + 8 * j + 2 * q;
          if (column < E) {
            const float2 e = unpack(*(const uint32_t*)(es + in_pieces<EC>(r + 8 * h, column)));
            along[h] += e.x * c[m][4 * j + 2 * h] + e.y * c[m][4 * j + 2 * h + 1];
          }
        }
      along[h] = quad(along[h]);
      rate[h] = eta * inverse[ROWS * team + r + 8 * h];
    }
#endif
#pragma unroll
    for (int m = 0; m < CHUNKS; m++)
#pragma unroll
      for (int j = 0; j < CHUNK / 8; j++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          const int column = CHUNK * m + 8 * j + 2 * q;
          if (r + 8 * h < n && column < E) {
            float2 d = make_float2(c[m][4 * j + 2 * h], c[m][4 * j + 2 * h + 1]);
#if UNIT
            const float2 e = unpack(*(const uint32_t*)(es + in_pieces<EC>(r + 8 * h, column)));
            d.x -= e.x * along[h]; d.y -= e.y * along[h];
#endif
            S* at_ = ds + (r + 8 * h) * DS + column;
            const float2 old = pair(at_), now = make_float2(keep * old.x - rate[h] * d.x, keep * old.y - rate[h] * d.y);
            squares += now.x * now.x + now.y * now.y;
            put(at_, now);
          }
        }
    warpgroup_sync(team);
    unsigned char* to = (unsigned char*)(fresh + ((size_t)user * V + v0) * E);
    if (PAD) {
      constexpr int EACH = E * (int)sizeof(S) / 16;
      for (int i = tid % 128; i < n * EACH; i += 128) *(uint4*)(to + 16 * i) = *(const uint4*)((const unsigned char*)(ds + i / EACH * DS) + 16 * (i % EACH));
    } else {
      for (int i = tid % 128; i < n * E * (int)sizeof(S) / 16; i += 128) *(uint4*)(to + 16 * i) = *(const uint4*)((const unsigned char*)ds + 16 * i);
    }
    fence_async();
    warpgroup_sync(team);
    if (warp == 0 && t + 2 < tiles) fetch(ds, from + (size_t)(t + 2) * ROWS * E, min(ROWS, last - v0 - 2 * ROWS), &bars[team]);
  }
#pragma unroll
  for (int x = 16; x; x >>= 1) squares += __shfl_xor_sync(~0u, squares, x);
  if (lane == 0) red[tid >> 5] = squares;
  __syncthreads();
  if (tid == 0) {
    float x = 0;
    for (int i = 0; i < 8; i++) x += red[i];
    square[(size_t)user * gridDim.x + blockIdx.x] = x * (unit * unit);
  }
}
