// A whole life of what we use, told by the vendor's clients to the server at the address that is
// given. It ends with status 1 at the first thing that is not as the vendor's own cloud has it.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/stackitcloud/stackit-sdk-go/core/config"
	"github.com/stackitcloud/stackit-sdk-go/core/oapierror"
	"github.com/stackitcloud/stackit-sdk-go/services/iaas"
	"github.com/stackitcloud/stackit-sdk-go/services/loadbalancer"
)

var (
	ctx     = context.Background()
	url     = os.Args[1]
	project = os.Args[2]
	region  = os.Args[3]
	network = os.Args[4]
	image   = os.Args[5]
	volume  = os.Args[6]
)

const nobody = "00000000-0000-4000-8000-000000000000"

func main() {
	key, err := os.ReadFile(os.Args[7])
	must(err)
	options := func(path string) []config.ConfigurationOption {
		return []config.ConfigurationOption{
			config.WithEndpoint(url + path),
			config.WithTokenEndpoint(url + "/token"),
			config.WithServiceAccountKey(string(key)),
		}
	}
	servers, err := iaas.NewAPIClient(options("/iaas")...)
	must(err)
	balancers, err := loadbalancer.NewAPIClient(options("/balancers")...)
	must(err)
	machine(servers)
	named(servers)
	balanced(balancers)
	credentials(balancers)
	fmt.Println("done")
}

func machine(client *iaas.APIClient) {
	made, err := client.CreateServer(ctx, project, region).CreateServerPayload(iaas.CreateServerPayload{
		Name:             ptr("node-1"),
		MachineType:      ptr("c2i.2"),
		ImageId:          &image,
		AvailabilityZone: ptr("eu01-2"),
		KeypairName:      ptr("ops"),
		Labels:           &map[string]interface{}{"env": "test"},
		Metadata:         &map[string]interface{}{"a": "b"},
		UserData:         ptr([]byte("#!/bin/sh")),
		Agent:            &iaas.ServerAgent{Provisioned: ptr(true)},
		BootVolume: &iaas.ServerBootVolume{
			DeleteOnTermination: ptr(true), Size: ptr(int64(40)),
			Source: &iaas.BootVolumeSource{Type: ptr("image"), Id: &image},
		},
		Networking: &iaas.CreateServerPayloadAllOfNetworking{
			CreateServerNetworking: &iaas.CreateServerNetworking{NetworkId: &network},
		},
	}).Execute()
	must(err)
	found, err := client.GetServer(ctx, project, region, *made.Id).Details(true).Execute()
	must(err)
	same("status", *found.Status, "ACTIVE")
	same("zone", *found.AvailabilityZone, "eu01-2")
	same("network", *(*found.Nics)[0].NetworkId, network)
	for selector, count := range map[string]int{"env=test": 1, "env=prod": 0, "": 1} {
		asked := client.ListServers(ctx, project, region).Details(true)
		if selector != "" {
			asked = asked.LabelSelector(selector)
		}
		listed, err := asked.Execute()
		must(err)
		same("servers with "+selector, len(*listed.Items), count)
	}
	cards, err := client.ListServerNICs(ctx, project, region, *made.Id).Execute()
	must(err)
	card := (*cards.Items)[0]
	changed, err := client.UpdateNic(ctx, project, region, network, *card.Id).UpdateNicPayload(iaas.UpdateNicPayload{
		AllowedAddresses: &[]iaas.AllowedAddressesInner{{String: ptr("10.96.0.0/12")}},
	}).Execute()
	must(err)
	same("allowed", *(*changed.AllowedAddresses)[0].String, "10.96.0.0/12")
	must(client.DeleteServer(ctx, project, region, *made.Id).Execute())
	_, err = client.GetServer(ctx, project, region, *made.Id).Execute()
	refused("a server that is gone", err, 404)
	refused("its deletion", client.DeleteServer(ctx, project, region, *made.Id).Execute(), 404)
	_, err = client.CreateServer(ctx, project, region).CreateServerPayload(iaas.CreateServerPayload{
		Name: ptr("node-2"), MachineType: ptr("c2i.2"), ImageId: ptr(nobody),
		Networking: &iaas.CreateServerPayloadAllOfNetworking{
			CreateServerNetworking: &iaas.CreateServerNetworking{NetworkId: &network},
		},
	}).Execute()
	refused("an image that is not there", err, 404)
}

// What a class names, and whether it is there.
func named(client *iaas.APIClient) {
	one, err := client.GetNetwork(ctx, project, region, network).Execute()
	must(err)
	same("network", *one.Id, network)
	other, err := client.GetImage(ctx, project, region, image).Execute()
	must(err)
	same("image", *other.Id, image)
	third, err := client.GetVolume(ctx, project, region, volume).Execute()
	must(err)
	same("volume", *third.Id, volume)
	_, err = client.GetVolume(ctx, project, region, nobody).Execute()
	refused("a volume that is not there", err, 404)
}

func balanced(client *loadbalancer.APIClient) {
	pools := []loadbalancer.TargetPool{{
		Name: ptr("http"), TargetPort: ptr(int64(30080)),
		Targets:            &[]loadbalancer.Target{{DisplayName: ptr("node-1"), Ip: ptr("10.0.0.4")}},
		SessionPersistence: &loadbalancer.SessionPersistence{UseSourceIpAddress: ptr(false)},
	}}
	order := loadbalancer.CreateLoadBalancerPayload{
		Name: ptr("lb-1"), PlanId: ptr("p10"), Labels: &map[string]string{"env": "test"},
		DisableTargetSecurityGroupAssignment: ptr(true),
		Networks: &[]loadbalancer.Network{{
			NetworkId: &network, Role: loadbalancer.NETWORKROLE_LISTENERS_AND_TARGETS.Ptr(),
		}},
		Listeners: &[]loadbalancer.Listener{{
			DisplayName: ptr("http"), Port: ptr(int64(80)), TargetPool: ptr("http"),
			Protocol: loadbalancer.LISTENERPROTOCOL_TCP.Ptr(),
			Tcp:      &loadbalancer.OptionsTCP{IdleTimeout: ptr("3600s")},
		}},
		TargetPools: &pools,
		Options:     &loadbalancer.LoadBalancerOptions{EphemeralAddress: ptr(true)},
	}
	_, err := client.CreateLoadBalancer(ctx, project, region).CreateLoadBalancerPayload(order).Execute()
	must(err)
	_, err = client.CreateLoadBalancer(ctx, project, region).CreateLoadBalancerPayload(order).Execute()
	refused("the name is taken", err, 409)
	found := balancer(client)
	same("status", *found.Status, loadbalancer.LOADBALANCERSTATUS_READY)
	same("address", *found.ExternalAddress != "", true)
	change := loadbalancer.UpdateLoadBalancerPayload{
		Name: order.Name, PlanId: ptr("p50"), Labels: order.Labels, Networks: order.Networks,
		Listeners: order.Listeners, TargetPools: &pools, Options: order.Options,
		DisableTargetSecurityGroupAssignment: ptr(true), Version: found.Version,
	}
	_, err = client.UpdateLoadBalancer(ctx, project, region, "lb-1").UpdateLoadBalancerPayload(change).Execute()
	must(err)
	_, err = client.UpdateLoadBalancer(ctx, project, region, "lb-1").UpdateLoadBalancerPayload(change).Execute()
	refused("its version is another", err, 409)
	_, err = client.UpdateTargetPool(ctx, project, region, "lb-1", "http").UpdateTargetPoolPayload(
		loadbalancer.UpdateTargetPoolPayload{
			Name: ptr("http"), TargetPort: ptr(int64(30081)), Targets: &[]loadbalancer.Target{},
		}).Execute()
	must(err)
	found = balancer(client)
	same("plan", *found.PlanId, "p50")
	same("port", *(*found.TargetPools)[0].TargetPort, 30081)
	order.Name = ptr("lb-2")
	_, err = client.CreateLoadBalancer(ctx, project, region).CreateLoadBalancerPayload(order).Execute()
	must(err)
	page, err := client.ListLoadBalancers(ctx, project, region).PageSize("1").Execute()
	must(err)
	next, err := client.ListLoadBalancers(ctx, project, region).PageSize("1").PageId(*page.NextPageId).Execute()
	must(err)
	same("second page", *(*next.LoadBalancers)[0].Name, "lb-2")
	for _, name := range []string{"lb-1", "lb-2"} {
		_, err = client.DeleteLoadBalancer(ctx, project, region, name).Execute()
		must(err)
	}
	_, err = client.GetLoadBalancer(ctx, project, region, "lb-1").Execute()
	refused("a load balancer that is gone", err, 404)
}

func balancer(client *loadbalancer.APIClient) *loadbalancer.LoadBalancer {
	found, err := client.GetLoadBalancer(ctx, project, region, "lb-1").Execute()
	must(err)
	return found
}

func credentials(client *loadbalancer.APIClient) {
	made, err := client.CreateCredentials(ctx, project, region).CreateCredentialsPayload(
		loadbalancer.CreateCredentialsPayload{
			DisplayName: ptr("lb-1"), Username: ptr("me"), Password: ptr("hush"),
		}).Execute()
	must(err)
	ref := *made.Credential.CredentialsRef
	_, err = client.UpdateCredentials(ctx, project, region, ref).UpdateCredentialsPayload(
		loadbalancer.UpdateCredentialsPayload{
			DisplayName: ptr("lb-1"), Username: ptr("you"), Password: ptr("hush"),
		}).Execute()
	must(err)
	listed, err := client.ListCredentials(ctx, project, region).Execute()
	must(err)
	same("user", *(*listed.Credentials)[0].Username, "you")
	_, err = client.DeleteCredentials(ctx, project, region, ref).Execute()
	must(err)
}

func refused(what string, err error, status int) {
	var said *oapierror.GenericOpenAPIError
	if !errors.As(err, &said) {
		must(fmt.Errorf("%s: %v, not status %d", what, err, status))
	}
	same(what, said.StatusCode, status)
}

func same[T comparable](what string, found, wanted T) {
	if found != wanted {
		must(fmt.Errorf("%s is %v, not %v", what, found, wanted))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func ptr[T any](value T) *T { return &value }
