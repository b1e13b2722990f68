module ccm.invalid/stackitclient

go 1.25.0

require (
	github.com/stackitcloud/stackit-sdk-go/core v0.20.1
	github.com/stackitcloud/stackit-sdk-go/services/iaas v1.3.0
	github.com/stackitcloud/stackit-sdk-go/services/loadbalancer v1.6.2
)

require (
	github.com/golang-jwt/jwt/v5 v5.3.0 // indirect
	github.com/google/uuid v1.6.0 // indirect
)
