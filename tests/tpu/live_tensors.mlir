module @IrToHlo.6 attributes {mhlo.is_dynamic = false} {
  func.func @main(%arg0: tensor<2xf32>, %arg1: tensor<2xbf16>) -> (tensor<2xf32>, tensor<2xf32>, tensor<2xf32>) {
    %1 = stablehlo.convert %arg1 : (tensor<2xbf16>) -> tensor<2xf32>
    %2 = stablehlo.add %1, %1 : tensor<2xf32>
    return %arg0, %2, %2 : tensor<2xf32>, tensor<2xf32>, tensor<2xf32>
  }
}
