"""What the TPU compiler's text has of a loop is what castoff/tpu/estimate.py reads."""

LOOP = """
func.func public @main(%x: tensor<512x512xbf16>, %w: tensor<8x512x512xbf16>) -> tensor<512x512xbf16> {{
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %n = stablehlo.constant dense<{trips}> : tensor<i32>
  %r:2 = stablehlo.while(%i = %zero, %y = %x) : tensor<i32>, tensor<512x512xbf16>
  cond {{
    %c = stablehlo.compare LT, %i, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %c : tensor<i1>
  }} do {{
    %s = stablehlo.dynamic_slice %w, %i, %zero, %zero, sizes = [1, 512, 512]
      : (tensor<8x512x512xbf16>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x512x512xbf16>
    %m = stablehlo.reshape %s : (tensor<1x512x512xbf16>) -> tensor<512x512xbf16>
    %d = stablehlo.dot_general %y, %m, contracting_dims = [1] x [0]
      : (tensor<512x512xbf16>, tensor<512x512xbf16>) -> tensor<512x512xbf16>
    %j = stablehlo.add %i, %one : tensor<i32>
    stablehlo.return %j, %d : tensor<i32>, tensor<512x512xbf16>
  }}
  return %r#1 : tensor<512x512xbf16>
}}
"""


def test_a_loop_counts_as_often_as_it_runs(tpu_compiler, topology):
    found = [tpu_compiler.compile(LOOP.format(trips=trips).encode(), topology).estimate for trips in (2, 5, 8)]
    assert not any(each.loops for each in found)
    few, more, most = (each.compute for each in found)
    assert most - more == more - few > 0
