// What table.cu and one_table.cu share: how rows of a table and outputs of a step lie in shared memory, and their logits. T (tokens of a
// step, a multiple of 16) and E (numbers in a row, a multiple of 4) are defined before this text.
#define LOWEST -1e30f
#define ROWS 64                                // of the table for each warpgroup at a time
#define GROUPS ((E + 7) / 8)                   // of 8 columns
#define KS ((E + 15) / 16)                     // steps of a sum over columns
#define WIDE (64 * ((E + 63) / 64))            // columns where they are the 64 rows of a product
#define BLOCKS (WIDE / 64)
#define MINE ((BLOCKS + 1) / 2)                // of these, for the first warpgroup; the second has the others
#define CHUNKS ((E + 255) / 256)
#define CHUNK (8 * ((GROUPS + CHUNKS - 1) / CHUNKS))  // columns of one product
#define EC (16 * KS)                           // columns of these steps: those beyond E are 0

// A matrix in pieces, those of the same 8 rows one after the other: where a number lies.
template <int COLUMNS> __device__ __forceinline__ int in_pieces(int r, int c) {
  return (r >> 3) * (COLUMNS * 16) + (c >> 3) * 128 + (r & 7) * 16 + (c & 7) * 2;
}
// The operand that begins here.
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
__device__ __forceinline__ void make_logits(const unsigned char* es, const unsigned char* os, float (&s)[T / 2]) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < KS; k++) wgmma<T, 0, 0>(s, by_rows<COLUMNS>(es + 256 * k), by_rows<OF_OUTPUTS>(os + 256 * k), k > 0);
  wgmma_commit();
  wgmma_wait(s);
}
